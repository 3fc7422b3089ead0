// Package election decides who may be the primary of a cluster. Its core (type Core) is a pure state machine: no client, no
// clock, no goroutine. A driver feeds it events with the present time and carries out the effects that come back.
//
// The protocol is described in docs/design/leadership.md.
package election

import (
	"cmp"
	"fmt"
	"time"
)

// Position is a place in the write-ahead log: the timeline and the flushed LSN on it. Timeline is that of the last record
// before LSN, not the one that a standby hopes to follow.
type Position struct {
	Timeline uint32 `json:"timeline"`
	LSN      uint64 `json:"lsn"`
}

// Compare orders positions by timeline, then LSN: a newer timeline was begun by a primary that held all acknowledged commits.
// It is sound only because no two primaries ever write the same timeline (Record.Timeline).
func (p Position) Compare(q Position) int {
	if c := cmp.Compare(p.Timeline, q.Timeline); c != 0 {
		return c
	}
	return cmp.Compare(p.LSN, q.LSN)
}

// String is timeline/LSN in PostgreSQL's notation.
func (p Position) String() string {
	return fmt.Sprintf("%d:%X/%X", p.Timeline, p.LSN>>32, uint32(p.LSN))
}

// Quorum says on how many of which standbys an acknowledged commit is, besides the primary:
// synchronous_standby_names = 'ANY Num (Standbys)'. The zero value is "primary only": no standby has to have it,
// so nobody but the last holder may lead.
type Quorum struct {
	Standbys []string `json:"standbys,omitempty"`
	Num      int      `json:"num,omitempty"`
}

// Release says that the holder let go of leadership, and how.
type Release struct {
	// To names the successor of a planned hand-over; empty when any may follow.
	To string `json:"to,omitempty"`
	// Clean: PostgreSQL was shut down, and End is the end of its write-ahead log. Whoever has End has every commit.
	Clean bool     `json:"clean,omitempty"`
	End   Position `json:"end,omitzero"`
	// Suspended asks everybody to stay down until the configuration says that the cluster is not suspended any more.
	Suspended bool `json:"suspended,omitempty"`
	// AcceptLoss is set by a person only: To may lead with whatever it has. The old primary must be known to be dead.
	AcceptLoss bool `json:"acceptLoss,omitempty"`
}

// Record is the leadership record in the cluster's Lease, changed only by compare-and-swap on the resource version.
type Record struct {
	Term             int64  `json:"term"`
	Holder           string `json:"holder"`    // pod name
	HolderUID        string `json:"holderUID"` // pod UID
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
	// Async: commits wait for nobody (durability Asynchronous); Quorums is empty then.
	Async bool `json:"async,omitempty"`
	// Quorums that were or may be in force in this term. A candidate has to satisfy every one:
	// during a change both the old and the new one are listed.
	Quorums []Quorum `json:"quorums,omitempty"`
	// Members are all instances that the holder knew.
	Members []string `json:"members,omitempty"`
	// Position of the holder at its last renewal.
	Position Position `json:"position,omitzero"`
	// Timeline is the highest timeline that any holder ever claimed. A promotion claims the next one here before it begins, so that
	// a timeline has one writer.
	Timeline uint32 `json:"timeline,omitempty"`
	// Renewals counts the attempts to write this term, so that watchers see each one and the writer knows its own.
	Renewals int64 `json:"renewals,omitempty"`
	// Released is set when the holder let go.
	Released *Release `json:"released,omitempty"`
}

// Lease is what was seen of the Lease object. Version is its resource version; "" when it does not exist.
type Lease struct {
	Version string `json:"version"`
	Record  Record `json:"record"`
}

// Timing are the durations of the protocol, see docs/design/leadership.md for their relations.
type Timing struct {
	LeaseDuration time.Duration // watchers call a lease expired that has not changed for so long: 12s
	RenewEvery    time.Duration // 4s
	RenewTimeout  time.Duration // of one API call: 2s
	FenceAfter    time.Duration // after the send time of the last successful renewal: 8s
	PromiseTTL    time.Duration // how long a peer's promise binds it, from receipt: 4s
	PromiseEvery  time.Duration // how often the holder asks for promises: 1s
	SyncGrace     time.Duration // Preferred: standbys gone for so long before the primary goes on alone: 5s
	AsyncSealWait time.Duration // Asynchronous: how long a candidate waits for all members' seals: 2s
	SealRetry     time.Duration // candidates ask again after: 200ms
	YieldToBetter time.Duration // an eligible candidate that is not the most advanced waits so long for a better one: 1s
	HandoverWait  time.Duration // the others wait so long for the named successor: 5s
	SyncSettle    time.Duration // from a reload of synchronous_standby_names until it is in force in all walsenders: 1s
}

// DefaultTiming is the design's.
func DefaultTiming() Timing {
	return Timing{
		LeaseDuration: 12 * time.Second, RenewEvery: 4 * time.Second, RenewTimeout: 2 * time.Second, FenceAfter: 8 * time.Second,
		PromiseTTL: 4 * time.Second, PromiseEvery: time.Second, SyncGrace: 5 * time.Second, AsyncSealWait: 2 * time.Second,
		SealRetry: 200 * time.Millisecond, YieldToBetter: time.Second, HandoverWait: 5 * time.Second, SyncSettle: time.Second,
	}
}

// Durability as in the API.
type Durability string

// Values of Durability.
const (
	Preferred    Durability = "Preferred"
	Required     Durability = "Required"
	Asynchronous Durability = "Asynchronous"
)

// Config is what the core must know; it may change at run time (EventConfig).
type Config struct {
	Self, SelfUID string
	Members       []string // all instances, self too, by ordinal; Members[0] bootstraps
	Durability    Durability
	Num           int   // number of synchronous standbys wanted
	MaxLag        int64 // bytes; Asynchronous: farthest behind the recorded position
	Bootstrap     bool  // no system identifier is known: Members[0] may make a new database
	Suspended     bool  // the cluster is suspended: a holder stops cleanly, nobody leads
	Timing        Timing
}

// MessageKind of a message between instances.
type MessageKind string

// Kinds of messages; each request is answered by its reply.
const (
	SealRequest    MessageKind = "SealRequest"
	SealReply      MessageKind = "SealReply"
	PromiseRequest MessageKind = "PromiseRequest"
	PromiseReply   MessageKind = "PromiseReply"
)

// Message between instances. Requests carry ID, which the reply repeats.
type Message struct {
	Kind MessageKind `json:"kind"`
	ID   uint64      `json:"id"`
	From string      `json:"from"`
	To   string      `json:"to"`
	Term int64       `json:"term"`
	// OK of a reply: sealed, or promised.
	OK bool `json:"ok,omitempty"`
	// Reason of a refusal.
	Reason string `json:"reason,omitempty"`
	// Promised is the highest term that the sender is bound to.
	Promised int64 `json:"promised,omitempty"`
	// Position of the sender once sealed (SealReply), Empty when it has no data.
	Position Position `json:"position,omitzero"`
	Empty    bool     `json:"empty,omitempty"`
	// Vacant: why the candidate holds the lease vacant (SealRequest): Expired, Released, HolderDead, NoRecord.
	Vacant string `json:"vacant,omitempty"`
	// Version is the Lease's resource version that the candidate goes by, RecordTerm the term that the Lease had then.
	Version    string `json:"version,omitempty"`
	RecordTerm int64  `json:"recordTerm,omitempty"`
	// Unfit: the sender has data that cannot be started (interrupted clone or rewind).
	Unfit bool `json:"unfit,omitempty"`
	// SystemIdentifier of the sender's data.
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
}

// Local is what the driver sees of its own PostgreSQL, given with every EventLocal.
type Local struct {
	HasData          bool
	SystemIdentifier string
	Running          bool // postmaster up and accepting connections
	// InRecovery: it is a standby; when it is down: its data is a standby's (standby.signal is there), so that leading needs a promotion.
	InRecovery bool
	// Position is what is flushed: of the WAL receiver on a standby, of the server on a primary. When stopped it may be
	// pg_control's, which is only a lower bound: decisions go by EventSealed's.
	Position Position
	// Standbys that stream from here and have caught up (primary only), and how far each has flushed (pg_stat_replication.flush_lsn).
	// A quorum is recorded only once Flushed shows it to hold everything; nil Flushed proves nothing.
	Standbys []string
	Flushed  []uint64
	// SyncInForce is the quorum that PostgreSQL works by now, by its setting (primary only).
	SyncInForce Quorum
	// NeedsRepair: the data cannot be started as primary (interrupted clone or rewind).
	NeedsRepair bool
}

// Event is what happens to an instance: one of the Event… types.
type Event interface{ event() }

// Events.
type (
	// EventTick: time passed. At least ten a second.
	EventTick struct{}
	// EventConfig: the configuration changed.
	EventConfig struct{ Config Config }
	// EventLease: the Lease was read or seen by a watch; it counts as contact with the API server. Version "" : it does not exist.
	EventLease struct{ Lease Lease }
	// EventAPIFailed: a read of the Lease failed or timed out.
	EventAPIFailed struct{}
	// EventCAS answers EffectCAS. OK: Lease is the new one. Conflict: somebody else changed it. Neither: unknown, it may or may not have been done.
	EventCAS struct {
		ID           uint64
		OK, Conflict bool
		Lease        Lease
	}
	// EventHolderDead: the container or node of that pod UID is proven dead. Term is that of the Lease that was read *before* the pod's
	// status was, since a restarted container has the same UID (0: the term of the Lease that the core saw last). An instance feeds no
	// EventLease before its own pod's status says that its container runs, so that a late proof never hits a restarted holder.
	EventHolderDead struct {
		UID  string
		Term int64
	}
	// EventMessage: a message came in.
	EventMessage struct{ Message Message }
	// EventLocal: the state of the own PostgreSQL.
	EventLocal struct{ Local Local }
	// EventSealed answers EffectSeal: the promise is on disk, no WAL comes in any more. Position is exact: nothing that was ever
	// flushed, and so perhaps acknowledged, lies beyond it. A server that is down is started as a standby without a source, or its
	// WAL is read to the end; an instance that cannot tell its position does not answer.
	EventSealed struct {
		Term     int64
		Position Position
		Empty    bool
	}
	// EventPromised answers EffectPromise.
	EventPromised struct{ Term int64 }
	// EventPostgresDied: the postmaster ended without being asked to; nothing of its tree is left.
	EventPostgresDied struct{}
	// EventFenced answers EffectFence: nothing of PostgreSQL's process tree is left.
	EventFenced struct{}
	// EventPromoted answers EffectPromote and EffectLead: PostgreSQL accepts writes.
	EventPromoted struct{ Position Position }
	// EventPromoteFailed answers EffectPromote and EffectLead.
	EventPromoteFailed struct{ Reason string }
	// EventHandover asks the holder to hand over, To may be empty; it is passed over when no standby can follow. Suspend: nobody shall
	// follow. Leaving: this process is about to end; it stops and lets go even if nobody can follow, and takes no part any more.
	EventHandover struct {
		To               string
		Suspend, Leaving bool
	}
	// EventStopped answers EffectStop. Clean: shut down, End is the end of WAL.
	EventStopped struct {
		Clean bool
		End   Position
	}
)

func (EventTick) event()          {}
func (EventConfig) event()        {}
func (EventLease) event()         {}
func (EventAPIFailed) event()     {}
func (EventCAS) event()           {}
func (EventHolderDead) event()    {}
func (EventMessage) event()       {}
func (EventLocal) event()         {}
func (EventSealed) event()        {}
func (EventPromised) event()      {}
func (EventPostgresDied) event()  {}
func (EventFenced) event()        {}
func (EventPromoted) event()      {}
func (EventPromoteFailed) event() {}
func (EventHandover) event()      {}
func (EventStopped) event()       {}

// Effect is what the driver has to do: one of the Effect… types. Effects of one Step are carried out in order.
type Effect interface{ effect() }

// Effects.
type (
	// EffectCAS: write the Lease if its version is still Version ("": create it). Renew marks a mere renewal.
	EffectCAS struct {
		ID      uint64
		Version string
		Record  Record
		Renew   bool
	}
	// EffectSend: send a message to a peer; it may be lost, late or doubled.
	EffectSend struct{ Message Message }
	// EffectRead: read the Lease now (not from a cache), then EventLease or EventAPIFailed.
	EffectRead struct{}
	// EffectSeal: write the promise of Term to the data volume (fsync), stop the WAL receiver until the next EffectFollow, then
	// EventSealed. It is never given to an instance that leads.
	EffectSeal struct{ Term int64 }
	// EffectPromise: write the promise of Term to the data volume (fsync) and do nothing else, then EventPromised. A holder needs it
	// to go on under a higher term.
	EffectPromise struct{ Term int64 }
	// EffectFence: SIGKILL the whole PostgreSQL tree now, then EventFenced.
	EffectFence struct{ Reason string }
	// EffectDeadline: the guard kills PostgreSQL's tree at At (driver's clock) unless told otherwise. Zero: no deadline (not leading).
	EffectDeadline struct{ At time.Duration }
	// EffectPromote: leadership of Term was won by a standby: promote it (start it as a standby first if it is down) with Sync in force
	// from the first commit on. The new timeline must be Timeline or a later one: others may have been begun that this instance never saw.
	EffectPromote struct {
		Term     int64
		Timeline uint32
		Sync     Quorum
	}
	// EffectLead: leadership of Term was won by an instance whose PostgreSQL is down: start it as primary with Sync in force. Data of a
	// primary goes on on its own timeline; data of a standby is promoted, onto Timeline or a later one. Init: make a new database first.
	EffectLead struct {
		Term     int64
		Timeline uint32
		Sync     Quorum
		Init     bool
	}
	// EffectFollow: stream from Leader, which holds Term (clone or rewind first if need be). Term is written to disk as promised first, so
	// that the instance follows no lower one after a restart.
	EffectFollow struct {
		Leader, LeaderUID string
		Term              int64
	}
	// EffectSetSync: set synchronous_standby_names and reload; EventLocal's SyncInForce tells when it is in force.
	EffectSetSync struct{ Sync Quorum }
	// EffectPointService: point <cluster>-rw at this pod.
	EffectPointService struct{ Term int64 }
	// EffectStop: checkpoint, then shut PostgreSQL down fast and wait until Successor ("" : nobody) has the end of WAL, then EventStopped.
	EffectStop struct{ Successor string }
)

func (EffectCAS) effect()          {}
func (EffectSend) effect()         {}
func (EffectRead) effect()         {}
func (EffectSeal) effect()         {}
func (EffectPromise) effect()      {}
func (EffectFence) effect()        {}
func (EffectDeadline) effect()     {}
func (EffectPromote) effect()      {}
func (EffectLead) effect()         {}
func (EffectFollow) effect()       {}
func (EffectSetSync) effect()      {}
func (EffectPointService) effect() {}
func (EffectStop) effect()         {}

// View is what the core holds true, for status and metrics.
type View struct {
	// Leading: this instance holds leadership, and PostgreSQL may accept writes.
	Leading bool
	// Term held, followed or promised, whichever is highest.
	Term int64
	// Leader as last recorded ("" : none or released).
	Leader string
	// Phase of the state machine, one word.
	Phase string
	// PrimaryOnly: the record says that no standby is sure to hold every commit.
	PrimaryOnly bool
	// Deadline of the fence (driver's clock), zero when not leading.
	Deadline time.Duration
	// Why says what the instance waits for, for people.
	Why string
}
