// Package pki makes and renews the certificates of a cluster: a CA of its own, and certificates for the PostgreSQL server, for
// the instances among each other, and for the operator as their client. It reads no clock: the present time is an input.
package pki

import (
	"time"
)

// Keys of the Secrets' data.
const (
	KeyCert = "tls.crt"
	KeyKey  = "tls.key"
	// KeyCA holds every CA that is trusted now; more than one while the CA is changed.
	KeyCA = "ca.crt"
	// keyRotation is the value of naming.AnnotationRotateCA that the CA was last changed for.
	keyRotation = "rotation"
)

// Lifetimes of certificates, and how early they are renewed.
const (
	LifetimeCA   = 10 * 365 * 24 * time.Hour
	LifetimeLeaf = 90 * 24 * time.Hour
	// Overlap is how long a new CA is trusted before it signs, and an old one after it has ceased to: a mounted Secret reaches a pod
	// within about a minute and a half.
	Overlap = 2 * time.Minute
	// backdate of a certificate's begin, for hosts whose clocks are behind.
	backdate = 5 * time.Minute
)

// Set is the data of the Secrets that hold a cluster's certificates. A nil map: the Secret does not exist, or should not.
type Set struct {
	CA, Server, Peer, Operator map[string][]byte
}

// Request is what certificates follow from.
type Request struct {
	// Now is the present time.
	Now time.Time
	// Cluster and Namespace name the PostgreSQLCluster; all Service and pod names follow from them.
	Cluster, Namespace string
	// ServiceNames are more Services of the cluster (spec.service.additional), by full name.
	ServiceNames []string
	// Hosts are more host names and IP addresses that clients reach the server by, those of load balancers for example.
	Hosts []string
	// ServerByUser: spec.tls.serverSecret is set, so no server certificate is made.
	ServerByUser bool
	// Rotate is the value of naming.AnnotationRotateCA; a change makes a new CA.
	Rotate string
	// Settled: all instances are up and have the present Secrets mounted; a change of the CA proceeds only then.
	Settled bool
	// Found is what the Secrets hold now.
	Found Set
}

// Result says what is due.
type Result struct {
	Set Set
	// Changes tells what is new, for events; empty when Set equals what was found.
	Changes []string
	// Expires is when the first certificate expires. Next is when Ensure has something to do at the latest; zero Next never occurs.
	Expires, Next time.Time
}
