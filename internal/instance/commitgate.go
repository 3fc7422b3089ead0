package instance

import "time"

// gateSettle is how long after a reload the checkpointer is looked at.
const gateSettle = time.Second

// commitGate knows whether commits on this server wait for standbys at all. Setting synchronous_standby_names is not enough: sessions
// return without waiting until the checkpointer has told them otherwise, and it reads the new setting only between the steps of its
// work: a checkpoint that is asked for at once, or behind its schedule, keeps it from that for as long as it takes. So after a
// change from empty the gate counts as open until the checkpointer was seen at rest.
type commitGate struct {
	// shut: commits wait.
	shut bool
	// since is when the server was told of names after it had none, 0: it was not.
	since time.Duration
}

// started: the server began with those names, and so did its checkpointer.
func (g *commitGate) started(names string) { *g = commitGate{shut: names != ""} }

// opening: from here on the server may go by empty names.
func (g *commitGate) opening() { *g = commitGate{} }

// reloaded: the server has read those names.
func (g *commitGate) reloaded(now time.Duration, names string) {
	switch {
	case names == "":
		g.opening()
	case !g.shut && g.since == 0:
		g.since = now
	}
}

// looked: at began the checkpointer was seen to wait for something; stopped says that its process is stopped, and so sees nothing.
// In both waits it has just read what there was to read; a signal that is older than the wait would have ended it.
func (g *commitGate) looked(began time.Duration, wait string, stopped bool) {
	if g.since == 0 || began < g.since+gateSettle || stopped {
		return
	}
	if wait == "CheckpointerMain" || wait == "CheckpointWriteDelay" {
		*g = commitGate{shut: true}
	}
}
