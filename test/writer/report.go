package writer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// ServerReport is what one server acknowledged.
type ServerReport struct {
	Server
	Acks  int       `json:"acks"`
	First time.Time `json:"firstAck"`
	Last  time.Time `json:"lastAck"`
}

// Report is the outcome of a run.
type Report struct {
	Run          int64 `json:"run"`
	Transactions int   `json:"transactions"` // sent
	Acknowledged int   `json:"acknowledged"`
	// LostRows counts rows of acknowledged transactions that are absent; Lost are some of their ids.
	LostRows int     `json:"lostRows"`
	Lost     []int64 `json:"lost,omitempty"`
	// Torn counts transactions, acknowledged or not, of which only a part is there.
	Torn int `json:"torn"`
	// Unacknowledged counts rows that are there although the client got no answer: allowed, and normal after a fault.
	Unacknowledged int            `json:"unacknowledgedRows"`
	Servers        []ServerReport `json:"servers"`
	// TwoPrimaries counts acknowledgements by a server after another one had taken over; Stale are some of them.
	TwoPrimaries int            `json:"twoPrimaries"`
	Stale        []Stale        `json:"stale,omitempty"`
	Outage       Gap            `json:"outage"`
	OutageS      float64        `json:"outageSeconds"`
	Failures     map[string]int `json:"failures,omitempty"`
}

const examples = 20

// Present returns the sorted ids of this run's rows on the target, which may be a standby. It tries until ctx ends.
func (w *Writer) Present(ctx context.Context, target Target) ([]int64, error) {
	for {
		ids, err := w.present(ctx, target)
		if err == nil {
			return ids, nil
		}
		if !pause(ctx, w.config.RetryPause) {
			return nil, fmt.Errorf("read back what was written: %w", err)
		}
	}
}

func (w *Writer) present(ctx context.Context, target Target) ([]int64, error) {
	conn, err := w.connect(ctx, target)
	if err != nil {
		return nil, err
	}
	defer w.close(conn)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	query := fmt.Sprintf("SELECT id FROM %s WHERE run = $1", pgx.Identifier{w.config.Table}.Sanitize())
	result := conn.ExecParams(ctx, query, [][]byte{strconv.AppendInt(nil, w.run, 10)}, nil, nil, nil)
	var ids []int64
	for result.NextRow() {
		id, err := strconv.ParseInt(string(result.Values()[0]), 10, 64)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if _, err := result.Close(); err != nil {
		return nil, err
	}
	slices.Sort(ids)
	return ids, nil
}

// Verify reads back what was written and compares. Outage counts gaps that end after since. It tries to read until ctx ends.
func (w *Writer) Verify(ctx context.Context, since time.Time) (Report, error) {
	ids, err := w.Present(ctx, w.config.Target)
	if err != nil {
		return Report{}, err
	}
	return w.Compare(ids, since), nil
}

// Compare makes the report from the sorted ids that were read back.
func (w *Writer) Compare(ids []int64, since time.Time) Report {
	acks := w.Acks()
	w.mu.Lock()
	sent := w.sent
	w.mu.Unlock()
	r := Report{Run: w.run, Transactions: sent, Acknowledged: len(acks), Failures: w.Failures()}
	r.Lost = lost(acks, ids)
	r.LostRows = len(r.Lost)
	r.Lost = r.Lost[:min(examples, len(r.Lost))]
	r.Torn = torn(ids, int64(w.config.Rows))
	r.Unacknowledged = len(ids) - (r.Acknowledged*w.config.Rows - r.LostRows)
	r.Servers = servers(acks)
	r.Stale = TwoPrimaries(acks)
	r.TwoPrimaries = len(r.Stale)
	r.Stale = r.Stale[:min(examples, len(r.Stale))]
	r.Outage = Outage(acks, since)
	r.OutageS = r.Outage.Seconds()
	return r
}

// lost returns the acknowledged ids that are not among ids, which are sorted.
func lost(acks []Ack, ids []int64) []int64 {
	var out []int64
	for _, a := range acks {
		for id := a.First; id < a.First+int64(a.Rows); id++ {
			if _, found := slices.BinarySearch(ids, id); !found {
				out = append(out, id)
			}
		}
	}
	return out
}

// torn counts transactions of which some rows are there and some are not. Each connection's range begins at a multiple of rows.
func torn(ids []int64, rows int64) int {
	n := map[int64]int64{}
	for _, id := range ids {
		connection, offset := id/idsPerConnection, id%idsPerConnection
		n[connection*idsPerConnection+offset/rows]++
	}
	out := 0
	for _, count := range n {
		if count != rows {
			out++
		}
	}
	return out
}

func servers(acks []Ack) []ServerReport {
	var out []ServerReport
	for _, a := range acks {
		i := slices.IndexFunc(out, func(s ServerReport) bool { return s.Server == a.Server })
		if i < 0 {
			out = append(out, ServerReport{Server: a.Server, First: a.At})
			i = len(out) - 1
		}
		out[i].Acks++
		out[i].Last = a.At
	}
	return out
}
