package pgproc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// reasonRewind marks a generation that pg_rewind is changing. Unlike a half-made copy, it once was whole.
const reasonRewind = "rewind"

// keepAllWAL is the greatest wal_keep_size, in MB.
const keepAllWAL = "2147483647"

// RewindOptions of a rewind.
type RewindOptions struct {
	Source Source
	// SourceTimeline is what the source leads on. A target on that timeline is refused (ErrSameTimeline): it needs no rewind, and a
	// wrong one would end its recovery.
	SourceTimeline uint32
	// RestoreTargetWAL lets pg_rewind fetch missing WAL of the target by its restore_command.
	RestoreTargetWAL bool
	OnProgress       func(Progress)
}

// RewindResult says what was done.
type RewindResult struct {
	// Rewound: the target had diverged. False: it was a plain ancestor of the source.
	Rewound bool
	// DivergedAt is the LSN of the fork on timeline DivergedTimeline.
	DivergedAt       uint64
	DivergedTimeline uint32
}

// ErrSourceTimeline says that the source's control file does not show its new timeline yet: it needs a checkpoint there. Try again.
var ErrSourceTimeline = errors.New("the source has made no checkpoint on its timeline yet")

// ErrSourceUnreachable says that the source let nobody in, or not by then: nothing was changed. Try again.
var ErrSourceUnreachable = errors.New("the source cannot be connected to")

// unreachablePattern is how pg_rewind, by libpq, begins such a message.
var unreachablePattern = regexp.MustCompile(`connection to server (at|on) .* failed`)

// Rewind makes the stopped data directory g a copy of the source again by pg_rewind, after crash recovery where needed. It is tried
// first without changing anything; then g is marked incomplete before the first change and unmarked after the last: a rewind that was
// cut off (ErrIncomplete) leads to a new clone, never to a start. Any other error has left g as it was, but recovered.
// The source must have made a checkpoint on its timeline (ErrSourceTimeline). Configuration files in g are overwritten by the
// source's, and standby.signal may be gone also after an error: the caller writes both afterwards.
func (p *Programs) Rewind(ctx context.Context, v *Volume, g Generation, o RewindOptions) (RewindResult, error) {
	if g.Incomplete != "" {
		return RewindResult{}, fmt.Errorf("%w (%s): it has to be cloned", ErrIncomplete, g.Incomplete)
	}
	control, err := p.ControlData(ctx, g.Dir)
	if err != nil {
		return RewindResult{}, err
	}
	if max(control.Timeline, control.MinRecoveryEndTimeline) == o.SourceTimeline {
		return RewindResult{}, ErrSameTimeline
	}
	if err := p.ensureCleanShutdown(ctx, g, control); err != nil {
		return RewindResult{}, fmt.Errorf("crash recovery before the rewind: %w", err)
	}
	trial, err := p.rewind(ctx, g, o, true)
	if err != nil {
		if unreachablePattern.MatchString(err.Error()) {
			err = errors.Join(ErrSourceUnreachable, err)
		}
		return RewindResult{}, fmt.Errorf("rewind to %s:%d is not possible, nothing was changed: %w", o.Source.Host, o.Source.Port, err)
	}
	if trial.sameTimeline {
		return RewindResult{}, ErrSourceTimeline
	}
	if trial.notRequired {
		return RewindResult{}, nil
	}
	if err := v.Mark(g, reasonRewind); err != nil {
		return RewindResult{}, err
	}
	done, err := p.rewind(ctx, g, o, false)
	if err != nil {
		return RewindResult{}, fmt.Errorf("%w: a rewind to %s:%d was cut off; it has to be cloned: %w", ErrIncomplete, o.Source.Host, o.Source.Port, err)
	}
	if err := v.Complete(g); err != nil {
		return RewindResult{}, err
	}
	return done.RewindResult, nil
}

// ensureCleanShutdown does what pg_rewind would do by itself, and before that removes the signal files, with which a server in
// single-user mode refuses to start.
func (p *Programs) ensureCleanShutdown(ctx context.Context, g Generation, control postgres.ControlData) error {
	if control.State == postgres.StateShutDown || control.State == postgres.StateShutDownInRecovery {
		return nil
	}
	if err := errors.Join(removeStaleLocks(StartOptions{Dir: g.Dir}), ensurePrivate(g.Dir)); err != nil {
		return err
	}
	if err := SetStandby(g.Dir, false); err != nil {
		return err
	}
	// The checkpoint at the end of recovery would remove the WAL back to the fork, which pg_rewind has to read.
	_, err := p.run(p.command(ctx, "postgres", "--single", "-D", g.Dir, "-c", "wal_keep_size="+keepAllWAL, "template1"), nil)
	return err
}

type rewindOutcome struct {
	RewindResult
	notRequired, sameTimeline bool
}

var (
	divergedPattern     = regexp.MustCompile(`servers diverged at WAL location (\S+) on timeline (\d+)`)
	notRequiredPattern  = regexp.MustCompile(`no rewind required`)
	sameTimelinePattern = regexp.MustCompile(`source and target cluster are on the same timeline`)
)

// rewind runs pg_rewind once and reads what it says.
func (p *Programs) rewind(ctx context.Context, g Generation, o RewindOptions, dry bool) (rewindOutcome, error) {
	database := o.Source.Database
	if database == "" {
		database = "postgres"
	}
	info, err := o.Source.connInfo(database)
	if err != nil {
		return rewindOutcome{}, err
	}
	args := []string{"--target-pgdata", g.Dir, "--source-server", info, "--no-ensure-shutdown", "--progress"}
	if o.RestoreTargetWAL {
		args = append(args, "--restore-target-wal")
	}
	if dry {
		args = append(args, "--dry-run")
	}
	var out rewindOutcome
	read := func(line string) bool {
		if m := divergedPattern.FindStringSubmatch(line); m != nil {
			lsn, _ := postgres.ParseLSN(m[1])
			timeline, _ := strconv.ParseUint(m[2], 10, 32)
			out.DivergedAt, out.DivergedTimeline, out.Rewound = uint64(lsn), uint32(timeline), true
		}
		out.notRequired = out.notRequired || notRequiredPattern.MatchString(line)
		out.sameTimeline = out.sameTimeline || sameTimelinePattern.MatchString(line)
		return progressLine(line, o.OnProgress)
	}
	_, err = p.run(p.command(ctx, "pg_rewind", args...), read)
	return out, err
}
