package pgproc

import "context"

// InitDBOptions are the settings of a new database cluster.
type InitDBOptions struct {
	Superuser     string // name of the bootstrap role
	Encoding      string // for example "UTF8"
	Locale        string // for example "C.UTF-8"
	DataChecksums bool
}

// InitDB makes a new database cluster in g, which Volume.Begin made, and flushes it to disk. It refuses (ErrNotEmpty) when g is
// not empty or when another generation of the volume holds data: a database is made once. The caller flips to g afterwards.
func (p *Programs) InitDB(ctx context.Context, g Generation, o InitDBOptions) error {
	return errUnfinished
}
