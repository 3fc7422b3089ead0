package cluster

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
	"github.com/kumki-dev/kumki/hack/localkube/internal/storage"
)

// storageClasses creates the classes that the provisioner serves.
func storageClasses(ctx context.Context, client kubernetes.Interface) error {
	for name, isDefault := range map[string]string{storage.ClassStandard: "true", storage.ClassSmallFS: "false"} {
		_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": isDefault},
			},
			Provisioner:          storage.Provisioner,
			VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
			ReclaimPolicy:        new(corev1.PersistentVolumeReclaimDelete),
			AllowVolumeExpansion: new(true),
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// waitForNodes waits until every node is Ready and the default namespace takes pods.
func (c *Cluster) waitForNodes(ctx context.Context, client kubernetes.Interface, nodes []layout.Node) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return host.Poll(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		for _, n := range nodes {
			node, err := client.CoreV1().Nodes().Get(ctx, n.Name(), metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("%w; the end of %s:\n%s", err, c.super.LogPath(kubeletName(n)),
					c.super.LogTail(kubeletName(n), 5))
			}
			if condition := readyCondition(node); condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s is not ready: %s", n.Name(), condition.Message)
			}
		}
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func readyCondition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{Status: corev1.ConditionUnknown, Message: "no Ready condition yet"}
}

// waitForDNS waits until the cluster's DNS knows the API server's Service.
func (c *Cluster) waitForDNS(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := host.Poll(ctx, 200*time.Millisecond, lookupAPI); err != nil {
		return fmt.Errorf("DNS does not answer: %w; the end of %s:\n%s", err,
			c.super.LogPath(dnsName), c.super.LogTail(dnsName, 10))
	}
	return nil
}

func lookupAPI(ctx context.Context) error {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(layout.HostAddress, "53"))
	}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	addresses, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+layout.ClusterDomain+".")
	if err != nil {
		return err
	}
	if len(addresses) != 1 || addresses[0] != layout.ServiceAPI {
		return fmt.Errorf("it says %v for the API server, not %s", addresses, layout.ServiceAPI)
	}
	return nil
}
