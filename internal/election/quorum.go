package election

import "slices"

// PrimaryOnly says that no standby has to have a commit.
func (q Quorum) PrimaryOnly() bool { return q.Num <= 0 }

// Equal compares quorums as sets.
func (q Quorum) Equal(r Quorum) bool {
	if q.PrimaryOnly() || r.PrimaryOnly() {
		return q.PrimaryOnly() == r.PrimaryOnly()
	}
	return q.Num == r.Num && len(q.Standbys) == len(r.Standbys) && subset(q.Standbys, r.Standbys)
}

// SealsNeeded is how many of Standbys must be sealed so that at least one of them has any given acknowledged commit:
// it is on Num of them, so all but Num-1. Of a primary-only quorum no number suffices.
func (q Quorum) SealsNeeded() int { return len(q.Standbys) - q.Num + 1 }

// covers says that whoever satisfies q satisfies r as well: r's members are among q's, and r's commits are on as many of them.
func (q Quorum) covers(r Quorum) bool {
	if q.PrimaryOnly() {
		return true
	}
	return !r.PrimaryOnly() && q.Num <= r.Num && subset(r.Standbys, q.Standbys)
}

// Merge adds q to quorums and drops those that another one covers. The primary-only quorum covers all: the result is it alone.
func Merge(quorums []Quorum, q Quorum) []Quorum {
	for _, o := range quorums {
		if o.covers(q) {
			return quorums
		}
	}
	out := make([]Quorum, 0, len(quorums)+1)
	for _, o := range quorums {
		if !q.covers(o) {
			out = append(out, o)
		}
	}
	return append(out, q)
}

// effective are the quorums that a candidate has to satisfy: a record of a synchronous cluster without any is primary-only.
func (r *Record) effective() []Quorum {
	if len(r.Quorums) == 0 && !r.Async {
		return primaryOnly
	}
	return r.Quorums
}

var primaryOnly = []Quorum{{}}

// PrimaryOnly says that nobody but the last holder is sure to have every acknowledged commit.
func (r *Record) PrimaryOnly() bool {
	if r.Async || r.Term == 0 {
		return false
	}
	for _, q := range r.effective() {
		if q.PrimaryOnly() {
			return true
		}
	}
	return false
}

// inForce says that q is among quorums, so that PostgreSQL may work by it.
func inForce(quorums []Quorum, q Quorum) bool {
	for _, o := range quorums {
		if o.covers(q) {
			return true
		}
	}
	return false
}

// sameQuorums compares lists that Merge made.
func sameQuorums(a, b []Quorum) bool {
	return slices.EqualFunc(a, b, Quorum.Equal)
}

func subset(a, b []string) bool {
	for _, s := range a {
		if !slices.Contains(b, s) {
			return false
		}
	}
	return true
}

// union adds to a what b has and a has not, without self.
func union(a, b []string, self string) []string {
	for _, s := range b {
		if s != self && s != "" && !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// others is everybody who may have a say about the record: its members, standbys and holder, and the configured members, without self.
func others(r *Record, cfg *Config) []string {
	all := union(make([]string, 0, 8), cfg.Members, cfg.Self)
	all = union(all, r.Members, cfg.Self)
	for _, q := range r.Quorums {
		all = union(all, q.Standbys, cfg.Self)
	}
	if r.Holder != "" && r.Holder != cfg.Self && !slices.Contains(all, r.Holder) {
		all = append(all, r.Holder)
	}
	return all
}

// initialQuorum of a new term, of the standbys that will follow at once.
func initialQuorum(cfg *Config, followers []string) Quorum {
	if cfg.Durability == Asynchronous {
		return Quorum{}
	}
	var present []string
	for _, m := range cfg.Members {
		if m != cfg.Self && (cfg.Durability == Required || slices.Contains(followers, m)) {
			present = append(present, m)
		}
	}
	return quorumOf(cfg, present)
}

// quorumOf standbys, as many of them as wanted. Preferred makes do with fewer; Required never does.
func quorumOf(cfg *Config, standbys []string) Quorum {
	want := max(cfg.Num, 1)
	if cfg.Durability != Required {
		want = min(want, len(standbys))
	}
	if want == 0 || len(cfg.Members) == 1 {
		return Quorum{}
	}
	return Quorum{Standbys: standbys, Num: want}
}
