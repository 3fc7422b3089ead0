package election

import "time"

func (c *Core) onMessage(now time.Duration, m Message) {
	if m.To != c.cfg.Self || m.From == c.cfg.Self {
		return
	}
	switch m.Kind {
	case SealRequest:
		c.onSealRequest(now, m)
	case SealReply:
		c.onSealReply(m)
	case PromiseRequest:
		c.onPromiseRequest(now, m)
	case PromiseReply:
		c.onPromiseReply(m)
	}
}

// onSealRequest seals for a candidate's term. Sealing is always safe; it is refused where it would only disturb.
func (c *Core) onSealRequest(now time.Duration, m Message) {
	if c.holds() {
		c.hold.surpass = max(c.hold.surpass, c.overtaken(m.Term))
	}
	if reason := c.refuseSeal(now, &m); reason != "" {
		c.refuse(m, reason)
		return
	}
	if c.seal.term == m.Term {
		c.answerSeal(now, m)
		return
	}
	if c.seal.pending != m.Term {
		for _, w := range c.seal.waiting {
			c.refuse(w, reasonPromised)
		}
		c.seal.waiting = nil
		c.startSeal(m.Term)
	}
	for i := range c.seal.waiting {
		if c.seal.waiting[i].From == m.From {
			c.refuse(c.seal.waiting[i], reasonLater)
			c.seal.waiting[i] = m
			return
		}
	}
	c.seal.waiting = append(c.seal.waiting, m)
}

// refuseSeal says why this instance does not seal for the request; "" when it does.
func (c *Core) refuseSeal(now time.Duration, m *Message) string {
	sealed := m.Term == c.seal.term || m.Term == c.seal.pending
	switch {
	case c.role != follower:
		return reasonLeads
	case !c.known:
		return reasonStarting
	case m.Term < c.promised || m.Term <= c.floor && !sealed:
		return reasonPromised
	case c.isBound(now):
		return reasonBound
	case !sealed && !c.grounds(now, m):
		return reasonHeld
	}
	return ""
}

// grounds: the lease is vacant in this instance's own view, or the candidate knows more of it. Who cannot reach the API server
// knows nothing, and what would hold it back is a promise.
func (c *Core) grounds(now time.Duration, m *Message) bool {
	a := &c.api
	switch m.Vacant {
	case vacantReleased, vacantHolderDead, vacantNoRecord:
		return m.RecordTerm >= a.lease.Record.Term || c.vacancy(now) != ""
	case vacantExpired:
		return !a.in || !a.seen || c.vacancy(now) != ""
	}
	return false
}

func (c *Core) answerSeal(now time.Duration, m Message) {
	if c.isBound(now) {
		c.refuse(m, reasonBound)
		return
	}
	s := &c.seal.ballot
	r := c.reply(m)
	r.OK, r.Position, r.Empty, r.Unfit = true, s.Position, s.Empty, s.Unfit
	c.emit(EffectSend{r})
}

func (c *Core) refuse(m Message, reason string) {
	r := c.reply(m)
	r.Reason = reason
	c.emit(EffectSend{r})
}

func (c *Core) reply(m Message) Message {
	return Message{
		Kind: SealReply, ID: m.ID, From: c.cfg.Self, To: m.From, Term: m.Term, Promised: max(c.promised, c.floor),
		Empty: c.known && !c.local.HasData, SystemIdentifier: c.local.SystemIdentifier,
	}
}

// notice tells the holder that this instance is promised to a higher term than it holds, so that it takes a still higher one.
func (c *Core) notice(now time.Duration) {
	if now-c.noticeAt < readEvery {
		return
	}
	c.noticeAt = now
	r := &c.api.lease.Record
	c.emit(EffectSend{Message{
		Kind: SealRequest, ID: c.nextID(), From: c.cfg.Self, To: r.Holder, Term: c.promised,
		Version: c.api.lease.Version, RecordTerm: r.Term,
	}})
}
