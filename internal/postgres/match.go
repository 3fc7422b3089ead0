package postgres

import (
	"maps"
	"strconv"
)

// StandbyMustMatch are the settings that have to be at least as high on a standby as on its primary: a standby with a lower one does not
// start, or stops replaying. https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-ADMIN
var StandbyMustMatch = []string{
	"max_connections", "max_locks_per_transaction", "max_prepared_transactions", "max_wal_senders", "max_worker_processes",
}

// Order of a restart of all instances.
type Order string

// Values of Order.
const (
	StandbysFirst Order = "StandbysFirst"
	PrimaryFirst  Order = "PrimaryFirst"
)

// RestartStep is a restart of all instances in an order, with these values of StandbyMustMatch in force after it.
type RestartStep struct {
	Order    Order
	Settings map[string]string
}

// RestartOrder returns the steps from the settings in force on the primary to those wanted: raised ones go to the standbys
// first, lowered ones to the primary first. When some rise and some fall, everything rises first. Only names of StandbyMustMatch are
// looked at; one that is absent or no number on either side does not decide. With no difference there is one step, standbys first, because
// that is the order that keeps the primary up longest.
func RestartOrder(inForce, wanted map[string]string) []RestartStep {
	high := map[string]string{}
	final := map[string]string{}
	raised, lowered := false, false
	for _, name := range StandbyMustMatch {
		want, ok := wanted[name]
		if !ok {
			continue
		}
		high[name], final[name] = want, want
		now, errNow := strconv.Atoi(inForce[name])
		next, errNext := strconv.Atoi(want)
		switch {
		case errNow != nil || errNext != nil:
		case next > now:
			raised = true
		case next < now:
			lowered = true
			high[name] = inForce[name]
		}
	}
	switch {
	case raised && lowered:
		return []RestartStep{{StandbysFirst, high}, {PrimaryFirst, final}}
	case lowered:
		return []RestartStep{{PrimaryFirst, final}}
	}
	return []RestartStep{{StandbysFirst, final}}
}

// StandbySettings returns the settings that a standby has to start with: those given, and those of StandbyMustMatch no lower than what
// its control data says that the primary had. So a standby never refuses to start because the primary was not restarted yet.
func StandbySettings(settings map[string]string, control ControlData) map[string]string {
	out := maps.Clone(settings)
	if out == nil {
		out = map[string]string{}
	}
	for name, floor := range control.Settings {
		v, err := strconv.Atoi(out[name])
		if err != nil || v < floor {
			out[name] = strconv.Itoa(floor)
		}
	}
	return out
}

// FitSegments returns the settings with min_wal_size and max_wal_size no smaller than two WAL segments of the data directory, without which a
// server does not start. It changes nothing on a data directory whose segments are of the size that WALSegmentMB says.
func FitSegments(settings map[string]string, control ControlData) map[string]string {
	out := maps.Clone(settings)
	least := 2 * control.WALSegmentBytes / mib
	for _, name := range []string{"min_wal_size", "max_wal_size"} {
		mb, err := parseMegabytes(out[name])
		if err == nil && mb < least {
			out[name] = megabytes(least * mib)
		}
	}
	return out
}
