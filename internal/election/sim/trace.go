package sim

import (
	"fmt"
	"strings"

	"github.com/kumki-dev/kumki/internal/election"
)

func quorumText(q election.Quorum) string {
	if q.PrimaryOnly() {
		return "primary only"
	}
	return fmt.Sprintf("any %d of %s", q.Num, strings.Join(q.Standbys, ","))
}

func recordText(r *election.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "term %d, holder %s (%s), renewal %d, %s", r.Term, r.Holder, r.HolderUID, r.Renewals, r.Position)
	if r.Async {
		b.WriteString(", asynchronous")
	}
	for _, q := range r.Quorums {
		b.WriteString(", " + quorumText(q))
	}
	if l := r.Released; l != nil {
		fmt.Fprintf(&b, ", released to %q clean %v end %s suspended %v", l.To, l.Clean, l.End, l.Suspended)
	}
	return b.String()
}

func messageText(m *election.Message) string {
	s := fmt.Sprintf("%s %s->%s term %d", m.Kind, m.From, m.To, m.Term)
	switch m.Kind {
	case election.SealRequest:
		return s + " " + m.Vacant
	case election.SealReply:
		if m.OK {
			return fmt.Sprintf("%s sealed at %s empty %v", s, m.Position, m.Empty)
		}
		return fmt.Sprintf("%s refused: %s (promised %d)", s, m.Reason, m.Promised)
	case election.PromiseReply:
		return fmt.Sprintf("%s ok %v %s (promised %d)", s, m.OK, m.Reason, m.Promised)
	}
	return s
}

// eventText is "" for what is of no interest.
func eventText(ev election.Event) string {
	switch e := ev.(type) {
	case election.EventTick, election.EventLocal:
		return ""
	case election.EventLease:
		if e.Lease.Version == "" {
			return "sees no lease"
		}
		return "sees " + recordText(&e.Lease.Record)
	case election.EventCAS:
		return fmt.Sprintf("write %d: done %v conflict %v", e.ID, e.OK, e.Conflict)
	case election.EventMessage:
		return messageText(&e.Message)
	case election.EventConfig:
		return fmt.Sprintf("configuration: members %v %s %d suspended %v", e.Config.Members, e.Config.Durability, e.Config.Num, e.Config.Suspended)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T%+v", ev, ev), "election.")
}

func effectText(e election.Effect) string {
	switch e := e.(type) {
	case election.EffectRead, election.EffectDeadline:
		return ""
	case election.EffectSend:
		return ""
	case election.EffectCAS:
		return fmt.Sprintf("write %d on version %q: %s", e.ID, e.Version, recordText(&e.Record))
	case election.EffectSetSync:
		return "set " + quorumText(e.Sync)
	case election.EffectPromote:
		return fmt.Sprintf("promote, term %d, timeline %d or later, %s", e.Term, e.Timeline, quorumText(e.Sync))
	case election.EffectLead:
		return fmt.Sprintf("lead, term %d, %s, init %v", e.Term, quorumText(e.Sync), e.Init)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T%+v", e, e), "election.")
}
