package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"k8s.io/apimachinery/pkg/util/errors"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
	"github.com/kumki-dev/kumki/hack/localkube/internal/pki"
)

// certificates makes all keys, certificates and kubeconfigs of a new cluster.
func certificates(nodes []layout.Node) error {
	dir := layout.State("pki")
	ca, err := pki.NewCA(dir, "ca")
	if err != nil {
		return err
	}
	frontProxy, err := pki.NewCA(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := pki.NewKey(dir, "service-account"); err != nil {
		return err
	}
	if err := frontProxy.Issue(pki.Request{Name: "front-proxy-client", CommonName: "front-proxy-client"}); err != nil {
		return err
	}
	server := pki.Request{Name: apiServerName, CommonName: apiServerName, Hosts: []string{
		layout.HostAddress, layout.ServiceAPI, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default",
		"kubernetes.default.svc", "kubernetes.default.svc." + layout.ClusterDomain,
	}}
	if err := ca.Issue(server); err != nil {
		return err
	}
	clients := map[string]pki.Request{
		layout.Kubeconfig():               {Name: "admin", CommonName: "admin", Organization: []string{"system:masters"}},
		kubeconfig(dnsName):               {Name: dnsName, CommonName: "localkube:" + dnsName, Organization: []string{"system:masters"}},
		kubeconfig(storageName):           {Name: storageName, CommonName: "localkube:" + storageName, Organization: []string{"system:masters"}},
		kubeconfig(schedulerName):         {Name: schedulerName, CommonName: "system:kube-scheduler"},
		kubeconfig("kube-proxy"):          {Name: "kube-proxy", CommonName: "system:kube-proxy"},
		kubeconfig("kubelet-client"):      {Name: "kubelet-client", CommonName: "kubelet-client", Organization: []string{"system:masters"}},
		kubeconfig(controllerManagerName): {Name: controllerManagerName, CommonName: "system:kube-controller-manager"},
	}
	for _, n := range nodes {
		clients[n.Dir("kubelet.kubeconfig")] = pki.Request{
			Name: kubeletName(n), CommonName: "system:node:" + n.Name(), Organization: []string{"system:nodes"},
		}
	}
	for path, request := range clients {
		if err := ca.Issue(request); err != nil {
			return err
		}
		if err := ca.Kubeconfig(path, layout.APIServerURL(), request.Name); err != nil {
			return err
		}
	}
	return nil
}

func kubeconfig(name string) string { return layout.State("kubeconfigs", name+".kubeconfig") }

func pkiFile(name string) string { return layout.State("pki", name) }

func system(name string, argv ...string) host.Daemon {
	return host.Daemon{Name: name, LaunchSpec: host.LaunchSpec{Cgroup: systemCgroup, Argv: argv}}
}

func etcdDaemon() (host.Daemon, error) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return host.Daemon{}, err
	}
	client := fmt.Sprintf("http://127.0.0.1:%d", layout.EtcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", layout.EtcdPeerPort)
	// The data need not outlive a crash of the machine.
	return system(etcdName, path, "--name=localkube", "--data-dir="+layout.State("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=localkube="+peer,
		"--logger=zap", "--log-level=warn"), nil
}

func apiServerDaemon(p artifact.Programs) host.Daemon {
	d := system(apiServerName, p.APIServer,
		"--bind-address="+layout.HostAddress,
		"--advertise-address="+layout.HostAddress,
		fmt.Sprintf("--secure-port=%d", layout.APIPort),
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", layout.EtcdPort),
		"--service-cluster-ip-range="+layout.ServiceCIDR,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--client-ca-file="+pkiFile("ca.crt"),
		"--tls-cert-file="+pkiFile(apiServerName+".crt"),
		"--tls-private-key-file="+pkiFile(apiServerName+".key"),
		"--service-account-issuer=https://kubernetes.default.svc."+layout.ClusterDomain,
		"--service-account-key-file="+pkiFile("service-account.pub"),
		"--service-account-signing-key-file="+pkiFile("service-account.key"),
		"--kubelet-client-certificate="+pkiFile("kubelet-client.crt"),
		"--kubelet-client-key="+pkiFile("kubelet-client.key"),
		// The host does not resolve node names, and runs no kube-proxy.
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-aggregator-routing=true",
		"--requestheader-client-ca-file="+pkiFile("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+pkiFile("front-proxy-client.crt"),
		"--proxy-client-key-file="+pkiFile("front-proxy-client.key"),
		// Stopping it is one of the faults that tests inject; they want it to happen now.
		"--shutdown-delay-duration=0s",
		"--v=1",
	)
	return d
}

func controllerManagerDaemon(p artifact.Programs) host.Daemon {
	config := kubeconfig(controllerManagerName)
	return system(controllerManagerName, p.ControllerManager,
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
		"--root-ca-file="+pkiFile("ca.crt"),
		"--service-account-private-key-file="+pkiFile("service-account.key"),
		"--cluster-signing-cert-file="+pkiFile("ca.crt"), "--cluster-signing-key-file="+pkiFile("ca.key"),
		"--cluster-cidr="+layout.ClusterCIDR, "--service-cluster-ip-range="+layout.ServiceCIDR,
		"--kube-api-qps=100", "--kube-api-burst=200", "--v=1")
}

func schedulerDaemon(p artifact.Programs) host.Daemon {
	config := kubeconfig(schedulerName)
	return system(schedulerName, p.Scheduler,
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--bind-address=127.0.0.1", "--leader-elect=false", "--v=1")
}

func dnsDaemon(p artifact.Programs) host.Daemon {
	return system(dnsName, p.CoreDNS, "-conf", layout.State("Corefile"), "-quiet")
}

// corefile serves the cluster's own names only. What it says may be 5 s old at most, like the answers
// "no such name" that clients get while a pod is still starting.
func corefile() []byte {
	return fmt.Appendf(nil, `.:53 {
    bind %s
    errors
    cache {
        success 1024 5
        denial 1024 5
        servfail 1s
    }
    kubernetes %s in-addr.arpa {
        kubeconfig %s
        pods insecure
        ttl 5
    }
}
`, layout.HostAddress, layout.ClusterDomain, kubeconfig(dnsName))
}

// startControlPlane starts what does not run yet and waits for the API server.
func (c *Cluster) startControlPlane(ctx context.Context, p artifact.Programs) error {
	if err := host.WriteFile(layout.State("Corefile"), corefile(), 0o644); err != nil {
		return err
	}
	etcd, err := etcdDaemon()
	if err != nil {
		return err
	}
	for _, d := range []host.Daemon{etcd, apiServerDaemon(p)} {
		if _, err := c.super.Start(d); err != nil {
			return err
		}
	}
	if err := c.waitForAPI(ctx, 60*time.Second); err != nil {
		return err
	}
	var errs []error
	storage := system(storageName, c.super.Self, "storage", "--kubeconfig="+kubeconfig(storageName))
	for _, d := range []host.Daemon{controllerManagerDaemon(p), schedulerDaemon(p), dnsDaemon(p), storage} {
		_, err := c.super.Start(d)
		errs = append(errs, err)
	}
	return errors.NewAggregate(errs)
}

// waitForAPI waits until the API server says that it is ready.
func (c *Cluster) waitForAPI(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := Client()
	if err != nil {
		return err
	}
	err = host.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		if c.super.PID(apiServerName) == 0 {
			cancel() // it will not come back
			return fmt.Errorf("it does not run")
		}
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return fmt.Errorf("the API server is not ready: %w; the end of %s:\n%s", err,
			c.super.LogPath(apiServerName), c.super.LogTail(apiServerName, 10))
	}
	return nil
}
