package instanceapi

import (
	"context"
	"net"
	"strconv"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Common names of the certificates that may call an instance. The cluster's own CA signs both.
const (
	// CommonNameOperator is the operator's: it may read the status and ask for hand-over and restart.
	CommonNameOperator = "kumki-operator"
	// CommonNamePeer is shared by the instances of a cluster: they may read the status and send messages of the election.
	CommonNamePeer = naming.RoleReplication
)

// Paths of the endpoint.
const (
	pathStatus   = "/v1/status"
	pathPeer     = "/v1/peer"
	pathRelease  = "/v1/release"
	pathHandover = "/v1/handover"
	pathRestart  = "/v1/restart"
)

// Handler is what an instance does when it is asked. Methods are called by several goroutines at once, must come back within
// a second or two, and should give up when the context ends.
type Handler interface {
	// Status tells the instance's present state. It must answer although PostgreSQL hangs.
	Status(ctx context.Context) Status
	// Peer answers a message of another instance with the reply to it.
	Peer(ctx context.Context, m election.Message) (election.Message, error)
	// Release writes the record, which must be one that lets go of the lease, if the Lease's version is still the one given. An error
	// says that it may or may not have been written.
	Release(ctx context.Context, l election.Lease) (ReleaseReply, error)
	// Handover starts to hand leadership over and returns at once; why it does not is in the reply's Error.
	Handover(ctx context.Context, r HandoverRequest) HandoverReply
	// Restart starts to restart PostgreSQL and returns at once; the error says why it does not.
	Restart(ctx context.Context, r RestartRequest) error
}

// Target is an instance to call. The answer must come from the pod of that name: addresses are given to other pods soon
// after a pod is gone.
type Target struct {
	Pod     string
	Address string // host:port
}

// Target of the member, at its own address.
func (m Member) Target() Target {
	return Target{Pod: m.Name, Address: net.JoinHostPort(m.Host, strconv.Itoa(m.APIPort))}
}

// Client calls instances of one cluster. Every method returns within the context's deadline, and within CallTimeout without one.
// An error says which pod did not answer as it should and why; Refused tells an instance's own refusal from a failed call.
type Client interface {
	// Status asks for the state of an instance.
	Status(ctx context.Context, t Target) (Status, error)
	// Peer sends a message of the election and returns the reply.
	Peer(ctx context.Context, t Target, m election.Message) (election.Message, error)
	// Release asks a peer to let go of the lease in the caller's name, whose own credentials are not valid any more.
	Release(ctx context.Context, t Target, l election.Lease) (ReleaseReply, error)
	// Handover asks the primary to hand over.
	Handover(ctx context.Context, t Target, r HandoverRequest) (HandoverReply, error)
	// Restart asks for a restart of PostgreSQL.
	Restart(ctx context.Context, t Target, r RestartRequest) error
}
