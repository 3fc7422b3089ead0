// Package guard is the guard process and the protocol that the instance manager speaks with it.
//
// The manager sends orders over one pipe (the guard's file descriptor 3), the guard answers over another (4). Each message is
// smaller than PIPE_BUF, so it is written and read whole.
package guard

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// File descriptors of the pipes in the guard process.
const (
	OrdersFD  = 3
	AnswersFD = 4
)

// Quit instead of a deadline ends the guard without killing.
const Quit time.Duration = -1

// OrderSize and AnswerSize are the lengths of messages in bytes.
const (
	OrderSize  = 16
	AnswerSize = 16
)

// Order of the manager: a deadline by Now's clock, zero for none, or Quit.
type Order struct {
	Seq      uint64
	Deadline time.Duration
}

// Encode the order.
func (o Order) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, OrderSize), o.Seq)
	return binary.LittleEndian.AppendUint64(b, uint64(o.Deadline))
}

// DecodeOrder reads OrderSize bytes.
func DecodeOrder(b []byte) Order {
	return Order{Seq: binary.LittleEndian.Uint64(b), Deadline: time.Duration(binary.LittleEndian.Uint64(b[8:]))}
}

// Answer of the guard: the order Seq is in force, or (Fired) its deadline passed and nothing of PostgreSQL is left.
type Answer struct {
	Seq   uint64
	Fired bool
}

// Encode the answer.
func (a Answer) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, AnswerSize), a.Seq)
	var fired uint64
	if a.Fired {
		fired = 1
	}
	return binary.LittleEndian.AppendUint64(b, fired)
}

// DecodeAnswer reads AnswerSize bytes.
func DecodeAnswer(b []byte) Answer {
	return Answer{Seq: binary.LittleEndian.Uint64(b), Fired: binary.LittleEndian.Uint64(b[8:]) == 1}
}

// Now is the time since boot, with the time that the machine was suspended: a lease runs out in that time too.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}
