package pgproc

import (
	"context"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// ControlData reads pg_control of a data directory by pg_controldata.
func (p *Programs) ControlData(ctx context.Context, dir string) (postgres.ControlData, error) {
	return postgres.ControlData{}, errUnfinished
}

// LastWAL is the exact end of the valid WAL in a stopped data directory: records are checked one by one from the last checkpoint
// on, over timeline switches, and what counts is flushed to disk before LastWAL returns. An error means unknown, never zero.
func (p *Programs) LastWAL(ctx context.Context, dir string) (election.Position, error) {
	return election.Position{}, errUnfinished
}
