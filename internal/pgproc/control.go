package pgproc

import (
	"context"
	"fmt"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/pgproc/walscan"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// ControlData reads pg_control of a data directory by pg_controldata.
func (p *Programs) ControlData(ctx context.Context, dir string) (postgres.ControlData, error) {
	output, err := p.run(p.command(ctx, "pg_controldata", "--pgdata", dir), nil)
	if err != nil {
		return postgres.ControlData{}, err
	}
	control, err := postgres.ParseControlData(output)
	if err != nil {
		return postgres.ControlData{}, fmt.Errorf("control data of %s: %w", dir, err)
	}
	return control, nil
}

// LastWAL is the exact end of the valid WAL in a stopped data directory: records are checked one by one from the last checkpoint
// on, over timeline switches, and what counts is flushed to disk before LastWAL returns. An error means unknown, never zero.
// It reads all WAL since the last checkpoint: about 1 GB a second when it is cached.
func (p *Programs) LastWAL(ctx context.Context, dir string) (election.Position, error) {
	control, err := p.ControlData(ctx, dir)
	if err != nil {
		return election.Position{}, err
	}
	start := walscan.Start{
		LSN: uint64(control.CheckpointLSN), Timeline: control.Timeline, SegmentBytes: control.WALSegmentBytes,
		SystemIdentifier: control.SystemIdentifier,
	}
	end, err := walscan.End(ctx, dir+"/pg_wal", start)
	if err != nil {
		return election.Position{}, fmt.Errorf("end of the WAL of %s: %w", dir, err)
	}
	if end.LSN < uint64(control.MinRecoveryEnd) {
		return election.Position{}, fmt.Errorf("%w: the WAL of %s ends at %v, before %v, which the data needs", ErrWALMissing,
			dir, postgres.LSN(end.LSN), control.MinRecoveryEnd)
	}
	return election.Position{Timeline: end.Timeline, LSN: end.LSN}, nil
}
