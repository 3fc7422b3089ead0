// Package postgres is pure knowledge of PostgreSQL: positions, versions, control data, settings, host-based authentication,
// passwords. It has no client, no clock and no file access.
package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// LSN is a position in the write-ahead log, in bytes. Zero is no position: PostgreSQL never uses it.
type LSN uint64

// ParseLSN reads PostgreSQL's notation, two hexadecimal halves like 0/3000060. The empty string is the zero LSN.
func ParseLSN(s string) (LSN, error) {
	if s == "" {
		return 0, nil
	}
	hi, lo, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("%q is not a WAL position like 0/3000060", s)
	}
	h, err := strconv.ParseUint(hi, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a WAL position like 0/3000060: %w", s, err)
	}
	l, err := strconv.ParseUint(lo, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a WAL position like 0/3000060: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

// String is PostgreSQL's notation.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// MarshalText and UnmarshalText make JSON carry PostgreSQL's notation, as the type pg_lsn does.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads PostgreSQL's notation.
func (l *LSN) UnmarshalText(b []byte) error {
	v, err := ParseLSN(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}
