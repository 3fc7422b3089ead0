// Package pgproc runs PostgreSQL's programs and keeps the data volume: initdb, the postmaster, base backup, rewind, and
// the end of its process tree when the instance must fence itself.
//
// It knows nothing of Kubernetes and nothing of leadership. How it works and why is in docs/design/postgres-process.md.
package pgproc
