package election

// Parts of the protocol that NewWeak can leave out.
const (
	WeakSeals   = "all seals but one suffice"
	WeakFence   = "the holder does not fence itself"
	WeakNarrow  = "a quorum is recorded alone before it is in force"
	WeakPromise = "a promise to the primary does not bind"
	WeakCarry   = "a new term forgets the quorums of the old one"
	WeakWiden   = "PostgreSQL gets a quorum before it is recorded"
)

// NewWeak returns a core that leaves parts of the protocol out.
func NewWeak(cfg Config, promised int64, parts ...string) *Core {
	c := New(cfg, promised)
	w := &c.weak
	for _, part := range parts {
		*map[string]*bool{
			WeakSeals: &w.fewerSeals, WeakFence: &w.noFence, WeakNarrow: &w.narrowEarly, WeakPromise: &w.breakPromises,
			WeakCarry: &w.noCarry, WeakWiden: &w.setBeforeRecord,
		}[part] = true
	}
	return c
}
