// Package ha runs real instance managers and real PostgreSQL as processes of this machine against a real API server, and
// breaks them: high availability is tested in seconds, without containers. Run it by `make test`; it needs KUBEBUILDER_ASSETS, PostgreSQL 15
// and root (to start PostgreSQL as another user).
package ha
