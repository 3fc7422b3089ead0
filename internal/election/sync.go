package election

import (
	"slices"
	"time"
)

// syncing keeps the quorum that PostgreSQL works by and the one that the record names in step:
// the record names a new quorum before PostgreSQL gets it, and drops the old one only when the new one holds every commit.
type syncing struct {
	target Quorum // wanted
	set    Quorum // PostgreSQL was told
	// forceAt is when PostgreSQL was first seen to work by set, 0: not yet.
	forceAt time.Duration
	// mark is the end of WAL once set was in force in all walsenders; proven: Num of its standbys have flushed it.
	mark   uint64
	proven bool
	seen   []sighting
}

// sighting of a standby.
type sighting struct {
	name   string
	lostAt time.Duration // 0: it streams
}

// dropAfter is how long a standby is missing before it is left out, when enough others stream.
const dropAfter = time.Second

// begin sets the quorum that PostgreSQL starts with. Its standbys count as lost just now: they have the grace period to come.
func (s *syncing) begin(now time.Duration, q Quorum) {
	s.target, s.set = q, q
	for _, m := range q.Standbys {
		s.seen = append(s.seen, sighting{m, now})
	}
}

// onStandbys takes in which standbys stream and how far PostgreSQL's setting is.
func (c *Core) onStandbys(now time.Duration) {
	if c.role != leading {
		return
	}
	s := &c.hold.sync
	for i := range s.seen {
		v := &s.seen[i]
		switch here := slices.Contains(c.local.Standbys, v.name); {
		case here:
			v.lostAt = 0
		case v.lostAt == 0:
			v.lostAt = now
		}
	}
	for _, m := range c.local.Standbys {
		if !slices.ContainsFunc(s.seen, func(v sighting) bool { return v.name == m }) {
			s.seen = append(s.seen, sighting{name: m})
		}
	}
	s.target = s.wanted(now, &c.cfg)
	s.observe(now, &c.local, c.cfg.Timing.SyncSettle)
}

// wanted is the quorum that fits the standbys that are there.
func (s *syncing) wanted(now time.Duration, cfg *Config) Quorum {
	if cfg.Durability == Asynchronous {
		return Quorum{}
	}
	var present, kept, all []string
	for _, m := range cfg.Members {
		if m == cfg.Self {
			continue
		}
		all = append(all, m)
		i := slices.IndexFunc(s.seen, func(v sighting) bool { return v.name == m })
		if i < 0 {
			continue
		}
		gone := now - s.seen[i].lostAt
		if s.seen[i].lostAt == 0 || gone < dropAfter {
			present = append(present, m)
		}
		if s.seen[i].lostAt == 0 || gone < dropAfter || gone < cfg.Timing.SyncGrace && slices.Contains(s.set.Standbys, m) {
			kept = append(kept, m)
		}
	}
	switch enough := len(present) >= max(cfg.Num, 1); {
	case enough:
		return quorumOf(cfg, present)
	case cfg.Durability == Required:
		return quorumOf(cfg, all)
	}
	return quorumOf(cfg, kept)
}

// observe finds out whether the quorum that was set holds every commit: those that were acknowledged under an older one too.
func (s *syncing) observe(now time.Duration, l *Local, settle time.Duration) {
	switch {
	case s.proven:
		return
	case !l.SyncInForce.Equal(s.set):
		s.forceAt, s.mark = 0, 0
		return
	case s.forceAt == 0:
		s.forceAt = now
		return
	case now-s.forceAt < settle:
		return
	case s.mark == 0:
		// From here on every commit waits for set. Those before it end at the mark.
		s.mark = l.Position.LSN
	}
	n := 0
	for i, m := range l.Standbys {
		if i < len(l.Flushed) && l.Flushed[i] >= s.mark && slices.Contains(s.set.Standbys, m) {
			n++
		}
	}
	s.proven = s.set.PrimaryOnly() || n >= s.set.Num
}

// setSync tells PostgreSQL the wanted quorum as soon as the record allows for it.
func (c *Core) setSync() {
	h := &c.hold
	s := &h.sync
	if c.role != leading || s.target.Equal(s.set) {
		return
	}
	recorded := h.sure && !c.cas.flying && (h.record.Async || inForce(h.record.effective(), s.target))
	if !recorded && !c.weak.setBeforeRecord {
		return
	}
	s.set, s.forceAt, s.mark, s.proven = s.target, 0, 0, false
	c.emit(EffectSetSync{Sync: s.set})
}

// claim is what the record has to say about durability now; differs: it does not say so yet.
func (c *Core) claim() (async bool, quorums []Quorum, differs bool) {
	h := &c.hold
	s := &h.sync
	r := &h.record
	if c.role != leading {
		return r.Async, r.Quorums, false
	}
	switch {
	case c.cfg.Durability == Asynchronous:
		return true, nil, !r.Async
	case !s.target.Equal(s.set):
		if r.Async {
			return true, nil, false
		}
		quorums = Merge(r.effective(), s.target)
		return false, quorums, !sameQuorums(quorums, r.effective())
	case s.proven || c.weak.narrowEarly:
		quorums = []Quorum{s.set}
		return false, quorums, r.Async || !sameQuorums(quorums, r.effective())
	}
	// The new database is in the record as soon as it is there: from then on nobody makes another one.
	return r.Async, r.Quorums, r.SystemIdentifier == "" && c.local.SystemIdentifier != ""
}
