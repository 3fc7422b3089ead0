package controllers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

// Instances reaches the instances of clusters.
type Instances interface {
	// Client returns the client for a cluster, with the certificate from the cluster's operator Secret. It is an error when the Secret
	// holds no usable certificate.
	Client(cluster types.NamespacedName, secret map[string][]byte) (instanceapi.Client, error)
	// Forget ends the connections to a cluster that is gone.
	Forget(cluster types.NamespacedName)
}

// MutualTLS reaches instances over mTLS; it keeps one client a cluster. The zero value is ready for use.
type MutualTLS struct {
	mu      sync.Mutex
	clients map[types.NamespacedName]*clusterClient
}

// clusterClient is the client of a cluster with its identity, which changes with the Secret.
type clusterClient struct {
	*instanceapi.HTTPClient

	mu                sync.Mutex
	identity          *instanceapi.Identity
	certificate, root []byte
}

// Identity implements instanceapi.Source.
func (c *clusterClient) Identity() (*instanceapi.Identity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.identity, nil
}

func (c *clusterClient) set(secret map[string][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.identity != nil && bytes.Equal(c.certificate, secret[pki.KeyCert]) && bytes.Equal(c.root, secret[pki.KeyCA]) {
		return nil
	}
	identity, err := instanceapi.ParseIdentity(secret[pki.KeyCert], secret[pki.KeyKey], secret[pki.KeyCA])
	if err != nil {
		return fmt.Errorf("the operator's client certificate cannot be used: %w", err)
	}
	c.identity, c.certificate, c.root = identity, secret[pki.KeyCert], secret[pki.KeyCA]
	return nil
}

// Client implements Instances.
func (m *MutualTLS) Client(cluster types.NamespacedName, secret map[string][]byte) (instanceapi.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.clients[cluster]
	if !ok {
		c = &clusterClient{}
		c.HTTPClient = instanceapi.NewClient(c)
		if m.clients == nil {
			m.clients = map[types.NamespacedName]*clusterClient{}
		}
		m.clients[cluster] = c
	}
	if err := c.set(secret); err != nil {
		return nil, err
	}
	return c, nil
}

// Forget implements Instances.
func (m *MutualTLS) Forget(cluster types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.clients[cluster]; ok {
		c.Close()
		delete(m.clients, cluster)
	}
}

// target is how an instance is called: by the pod's address, which is right as soon as the pod has one.
func target(pod *corev1.Pod) instanceapi.Target {
	return instanceapi.Target{Pod: pod.Name, Address: net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(naming.PortAPI))}
}

// askTimeout bounds one question to an instance.
const askTimeout = 2 * time.Second

// answer of an instance, or why there is none.
type answer struct {
	status *instanceapi.Status
	err    error
}

// askAll asks all pods for their status at once.
func askAll(ctx context.Context, c instanceapi.Client, pods []*corev1.Pod) map[string]answer {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answers := make([]answer, len(pods))
	var wait sync.WaitGroup
	for i, pod := range pods {
		wait.Go(func() {
			status, err := c.Status(ctx, target(pod))
			answers[i] = answer{status: &status, err: err}
			if err != nil {
				answers[i].status = nil
			}
		})
	}
	wait.Wait()
	out := make(map[string]answer, len(pods))
	for i, pod := range pods {
		out[pod.Name] = answers[i]
	}
	return out
}
