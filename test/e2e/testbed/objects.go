package testbed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/internal/naming"
)

// Gibibyte is 1Gi.
var Gibibyte = resource.MustParse("1Gi")

// Claims returns the volume claims of the instances.
func (p *Postgres) Claims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	err := p.Client.List(ctx, &list, client.InNamespace(p.Namespace), client.MatchingLabels{naming.LabelCluster: p.Name})
	return list.Items, err
}

// SetPassword changes the application's password, as a person or a tool does.
func (p *Postgres) SetPassword(ctx context.Context, password string) error {
	secret, err := p.AppSecret(ctx)
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]any{"stringData": map[string]string{"password": password}})
	if err != nil {
		return err
	}
	return p.Client.Patch(ctx, secret, client.RawPatch("application/merge-patch+json", data))
}

// ServerCertificate returns the certificate that the primary shows to a client that comes from a node.
func (c *Credentials) ServerCertificate(ctx context.Context, node string) (*x509.Certificate, error) {
	service, err := c.postgres.Service(ctx, naming.ServiceRW(c.postgres.Name))
	if err != nil {
		return nil, err
	}
	conn, err := c.Session(ctx, node, service.Spec.ClusterIP, naming.PortPostgreSQL)
	if err != nil {
		return nil, err
	}
	defer closeSession(conn)
	secure, ok := conn.Conn().(*tls.Conn)
	if !ok {
		return nil, errors.New("the connection is not encrypted")
	}
	return secure.ConnectionState().PeerCertificates[0], nil
}

func closeSession(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// NodeAddress returns the address of a node in the cluster's network.
func (b *Bed) NodeAddress(ctx context.Context, name string) (string, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := b.Client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
		return "", err
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address, nil
		}
	}
	return "", fmt.Errorf("node %s has no internal address", name)
}

// DeleteLease deletes the object that leadership is recorded in.
func (p *Postgres) DeleteLease(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: naming.Lease(p.Name)}}
	return p.Client.Delete(ctx, lease)
}

// QuorumRecorded fails unless the leadership record says that every acknowledged commit is on another instance too.
func (p *Postgres) QuorumRecorded(ctx context.Context) error {
	record, err := p.Record(ctx)
	if err != nil {
		return err
	}
	if len(record.Quorums) == 0 {
		return errors.New("no quorum is recorded")
	}
	for _, q := range record.Quorums {
		if q.Num == 0 {
			return errors.New("the primary is the only copy")
		}
	}
	return nil
}

// LoseVolume deletes an instance's volumes and its pod, as when a disk died.
func (p *Postgres) LoseVolume(ctx context.Context, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName,
		}}
		// The claim itself goes when no pod uses it any more.
		if err := p.Client.Delete(ctx, claim); err != nil {
			return err
		}
	}
	return p.Client.Delete(ctx, pod.DeepCopy())
}

// Delete deletes the PostgreSQLCluster.
func (p *Postgres) Delete(ctx context.Context) error {
	cluster, err := p.Get(ctx)
	if err != nil {
		return err
	}
	return p.Client.Delete(ctx, cluster)
}

// Gone fails while the PostgreSQLCluster or one of its pods is there.
func (p *Postgres) Gone(ctx context.Context) error {
	if _, err := p.Get(ctx); !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the PostgreSQLCluster is still there"), err)
	}
	pods, err := p.Pods(ctx)
	if err == nil && len(pods) > 0 {
		err = fmt.Errorf("%d pods are still there", len(pods))
	}
	return err
}
