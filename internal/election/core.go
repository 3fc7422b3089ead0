package election

import "time"

// Core decides about leadership for one instance. It is not safe for concurrent use; the driver serialises Step and View.
type Core struct {
	cfg      Config
	promised int64
}

// New returns the core of an instance that has just started: PostgreSQL is down, the lease was not seen yet.
// promised is the highest term that the instance sealed for, as EffectSeal wrote it to disk; 0 when it never did.
func New(cfg Config, promised int64) *Core {
	return &Core{cfg: cfg, promised: promised}
}

// Step takes in what happened at now (the driver's monotonic clock) and returns what has to be done, in order.
func (c *Core) Step(now time.Duration, ev Event) []Effect {
	return nil
}

// View tells what the core holds true at now.
func (c *Core) View(now time.Duration) View {
	return View{Term: c.promised}
}
