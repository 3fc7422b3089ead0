package ha

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
	"github.com/kumki-dev/kumki/test/writer"
)

// Binaries and the user of PostgreSQL, set up once by the suite.
var (
	kumki, guardBinary string
	clusters           atomic.Int32
)

const (
	namespace = "default"
	// serviceAccount of the instances.
	serviceAccount = "instances"

	appPassword = "ha-test-password"
	portPG      = 15432
	portAPI     = 18443
	portProbe   = 18008
)

// cluster is a set of instance managers on addresses of their own in 127.0.0.0/8.
type cluster struct {
	name      string
	number    int
	root      string
	client    kubernetes.Interface
	config    instanceapi.Config
	api       instanceapi.Client
	instances []*instance
	uid, gid  int
}

// instance is one process `kumki instance`.
type instance struct {
	c       *cluster
	name    string
	dir     string
	address string
	podUID  string
	cmd     *exec.Cmd
	done    chan struct{}
	log     *os.File
}

// newCluster starts a cluster of n instances and stops it after the spec.
func newCluster(n int, change func(*instanceapi.Config)) *cluster {
	GinkgoHelper()
	number := int(clusters.Add(1))
	c := &cluster{name: fmt.Sprintf("ha%d", number), number: number, client: client}
	var err error
	c.root, err = os.MkdirTemp("", "kumki-ha-")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.Chmod(c.root, 0o755)).To(Succeed())
	u, err := user.Lookup("postgres")
	Expect(err).NotTo(HaveOccurred(), "the user postgres comes with Debian's package postgresql-15")
	c.uid, _ = strconv.Atoi(u.Uid)
	c.gid, _ = strconv.Atoi(u.Gid)
	c.certificates(n)
	c.config = instanceapi.Config{
		Cluster: c.name, Namespace: namespace, MajorVersion: 15, Durability: "Preferred", SynchronousStandbys: 1,
		MaxLagForReads: 256 << 20, MaxLagForPromotion: 64 << 20,
		InitDB:     instanceapi.InitDB{Database: "app", Owner: "app", Encoding: "UTF8", Locale: "C.UTF-8", DataChecksums: true},
		Parameters: map[string]string{"shared_buffers": "32MB", "fsync": "off", "wal_sender_timeout": "5s", "wal_receiver_timeout": "5s", "max_wal_senders": "20", "max_replication_slots": "20", "wal_keep_size": "64MB", "wal_retrieve_retry_interval": "500ms"},
	}
	for i := range n {
		c.config.Members = append(c.config.Members, instanceapi.Member{
			Name: naming.Pod(c.name, i), Host: c.address(i), Port: portPG, APIPort: portAPI,
		})
	}
	if change != nil {
		change(&c.config)
	}
	c.writeConfig()
	c.newService()
	DeferCleanup(c.tearDown)
	for i := range n {
		in := &instance{c: c, name: naming.Pod(c.name, i), dir: filepath.Join(c.root, strconv.Itoa(i)), address: c.address(i)}
		for _, d := range []string{"data", "run", "superuser"} {
			Expect(os.MkdirAll(filepath.Join(in.dir, d), 0o700)).To(Succeed())
		}
		c.own(in.dir)
		c.instances = append(c.instances, in)
		in.newPod()
		in.start()
	}
	return c
}

// newService makes <cluster>-rw as the operator does: without a selector.
func (c *cluster) newService() {
	GinkgoHelper()
	_, err := c.client.CoreV1().Services(namespace).Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: naming.ServiceRW(c.name)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "postgresql", Port: 5432}}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

// psql runs SQL as the superuser.
func (in *instance) psql(sql string) string {
	GinkgoHelper()
	cmd := exec.Command("/usr/lib/postgresql/15/bin/psql", "-h", filepath.Join(in.dir, "run"), "-p", strconv.Itoa(portPG), "-U", naming.RoleSuperuser,
		"-d", "postgres", "-XAtqc", sql)
	cmd.Dir = "/" // that of the checkout may be closed to the user
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(in.c.uid), Gid: uint32(in.c.gid)}}
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return strings.TrimSpace(string(out))
}

// address of an instance. Two runs on one machine do not share any.
func (c *cluster) address(i int) string {
	return fmt.Sprintf("127.%d.%d.%d", 16+os.Getpid()%200, c.number, i+1)
}

func (c *cluster) own(dir string) {
	GinkgoHelper()
	Expect(filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, c.uid, c.gid)
	})).To(Succeed())
}

func (c *cluster) certificates(n int) {
	GinkgoHelper()
	hosts := make([]string, 0, n)
	for i := range n + 2 {
		hosts = append(hosts, c.address(i))
	}
	result, err := pki.Ensure(pki.Request{Now: time.Now(), Cluster: c.name, Namespace: namespace, Hosts: hosts})
	Expect(err).NotTo(HaveOccurred())
	for dir, data := range map[string]map[string][]byte{
		"server": result.Set.Server, "peer": result.Set.Peer, "operator": result.Set.Operator,
		"client-ca": {"ca.crt": result.Set.CA["ca.crt"]}, "app": {"username": []byte("app"), "password": []byte(appPassword)},
	} {
		c.writeDir(dir, data)
	}
	c.api = instanceapi.NewClient(instanceapi.NewFileSource(filepath.Join(c.root, "operator")))
}

func (c *cluster) writeDir(dir string, data map[string][]byte) {
	GinkgoHelper()
	path := filepath.Join(c.root, dir)
	Expect(os.MkdirAll(path, 0o755)).To(Succeed())
	for name, content := range data {
		tmp := filepath.Join(path, "."+name)
		Expect(os.WriteFile(tmp, content, 0o644)).To(Succeed())
		Expect(os.Rename(tmp, filepath.Join(path, name))).To(Succeed())
	}
}

// writeConfig does what the kubelet does with a changed ConfigMap.
func (c *cluster) writeConfig() {
	GinkgoHelper()
	raw, err := json.Marshal(c.config)
	Expect(err).NotTo(HaveOccurred())
	c.writeDir("config", map[string][]byte{naming.KeyConfig: raw})
}

// newPod makes the Pod object that stands for the instance; only its name, UID and status are looked at.
func (in *instance) newPod() {
	GinkgoHelper()
	ctx := context.Background()
	pods := in.c.client.CoreV1().Pods(namespace)
	zero := int64(0)
	_ = pods.Delete(ctx, in.name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	p, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: in.name},
		Spec: corev1.PodSpec{
			Containers:         []corev1.Container{{Name: naming.ContainerDB, Image: "postgres:15"}},
			ServiceAccountName: serviceAccount,
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	in.podUID = string(p.UID)
	in.newToken()
}

// newToken gives the instance what the kubelet would: a token that is bound to its Pod object.
func (in *instance) newToken() {
	GinkgoHelper()
	bound := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: in.name, UID: types.UID(in.podUID)}
	token, err := in.c.client.CoreV1().ServiceAccounts(namespace).CreateToken(context.Background(), serviceAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := clientcmd.Load(adminKubeconfig)
	Expect(err).NotTo(HaveOccurred())
	for name := range kubeconfig.AuthInfos {
		kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	Expect(clientcmd.WriteToFile(*kubeconfig, in.kubeconfig())).To(Succeed())
	in.c.own(in.dir)
}

func (in *instance) kubeconfig() string { return filepath.Join(in.dir, "kubeconfig") }

// unknown waits until the API server does not know the instance any more: for some seconds it goes by what it knew of a token.
func (in *instance) unknown() {
	GinkgoHelper()
	cfg, err := clientcmd.BuildConfigFromFlags("", in.kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	own, err := kubernetes.NewForConfig(cfg)
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() bool {
		_, err := own.CoordinationV1().Leases(namespace).Get(context.Background(), naming.Lease(in.c.name), metav1.GetOptions{})
		return apierrors.IsUnauthorized(err)
	}, 30*time.Second, 20*time.Millisecond).Should(BeTrue(), "the token of %s ends with its pod", in.name)
}

// start runs the manager in a process group of its own.
func (in *instance) start() {
	GinkgoHelper()
	var err error
	in.log, err = os.OpenFile(in.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	Expect(err).NotTo(HaveOccurred())
	shared := func(d string) string { return filepath.Join(in.c.root, d) }
	in.cmd = exec.Command(kumki, "instance", "--pod-name", in.name, "--pod-uid", in.podUID, "--namespace", namespace,
		"--cluster", in.c.name, "--config-dir", shared("config"), "--server-tls-dir", shared("server"), "--peer-tls-dir", shared("peer"),
		"--client-ca-dir", shared("client-ca"), "--app-secret-dir", shared("app"), "--superuser-secret-dir", filepath.Join(in.dir, "superuser"),
		"--data-dir", filepath.Join(in.dir, "data"), "--run-dir", filepath.Join(in.dir, "run"), "--bind", in.address,
		"--port", strconv.Itoa(portPG), "--api-port", strconv.Itoa(portAPI), "--probe-port", strconv.Itoa(portProbe),
		"--guard-binary", guardBinary, "--pg-bin-dir", "/usr/lib/postgresql/15/bin", "--kubeconfig", in.kubeconfig(),
		"--no-pod-status", "--log-level", "debug")
	in.cmd.Dir = "/"
	in.cmd.Stdout, in.cmd.Stderr = in.log, in.log
	in.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true, Credential: &syscall.Credential{Uid: uint32(in.c.uid), Gid: uint32(in.c.gid)},
	}
	Expect(in.cmd.Start()).To(Succeed())
	in.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(in.cmd, in.done)
}

// signal to the manager's process.
func (in *instance) signal(s syscall.Signal) {
	GinkgoHelper()
	Expect(in.cmd.Process.Signal(s)).To(Succeed())
}

// terminate is what a deleted pod goes through.
func (in *instance) terminate() {
	GinkgoHelper()
	in.signal(syscall.SIGTERM)
	Eventually(in.done, 60*time.Second).Should(BeClosed(), "the manager of %s ends after SIGTERM", in.name)
}

// processes of PostgreSQL of this instance: pid to title.
func (in *instance) processes() map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if err != nil || !strings.HasPrefix(cwd, filepath.Join(in.dir, "data")) {
			continue
		}
		title, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		found[pid] = strings.TrimRight(strings.ReplaceAll(string(title), "\x00", " "), " ")
	}
	return found
}

// postmaster is the PID in postmaster.pid.
func (in *instance) postmaster() int {
	GinkgoHelper()
	raw, err := os.ReadFile(filepath.Join(in.dir, "data", "current", "postmaster.pid"))
	Expect(err).NotTo(HaveOccurred())
	pid, err := strconv.Atoi(strings.SplitN(string(raw), "\n", 2)[0])
	Expect(err).NotTo(HaveOccurred())
	return pid
}

// guard is the PID of the instance's guard process.
func (in *instance) guard() (int, error) {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(in.cmd.Process.Pid), "-f", "kumki-wal guard").Output()
	if err != nil {
		return 0, fmt.Errorf("the manager of %s has no guard: %w", in.name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

func (in *instance) member() instanceapi.Member { return *in.c.member(in.name) }

func (c *cluster) member(name string) *instanceapi.Member {
	for i := range c.config.Members {
		if c.config.Members[i].Name == name {
			return &c.config.Members[i]
		}
	}
	return nil
}

// status as the operator asks for it.
func (in *instance) status() (instanceapi.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return in.c.api.Status(ctx, instanceapi.Member{Name: in.name, Host: in.address, Port: portPG, APIPort: portAPI}.Target())
}

// record of leadership in the Lease.
func (c *cluster) record() (election.Record, error) {
	var r election.Record
	l, err := c.client.CoordinationV1().Leases(namespace).Get(context.Background(), naming.Lease(c.name), metav1.GetOptions{})
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(l.Annotations[naming.AnnotationRecord]), &r)
}

// primary is the instance that says that it is the primary; an error when it is not exactly one.
func (c *cluster) primary() (*instance, error) {
	var found *instance
	for _, in := range c.instances {
		s, err := in.status()
		if err != nil || !s.Primary {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("both %s and %s say that they are the primary", found.name, in.name)
		}
		found = in
	}
	if found == nil {
		return nil, errors.New("no primary")
	}
	return found, nil
}

// healthy: one primary, all others stream, and the record's quorum names them all.
func (c *cluster) healthy() error {
	p, err := c.primary()
	if err != nil {
		return err
	}
	ready := 0
	for _, in := range c.instances {
		s, err := in.status()
		if err != nil {
			return err
		}
		if !s.Ready || (in != p && s.State != instanceapi.StateStreaming) {
			return fmt.Errorf("%s is %s %s", in.name, s.State, s.Message)
		}
		ready++
	}
	r, err := c.record()
	if err != nil {
		return err
	}
	if r.Holder != p.name {
		return fmt.Errorf("the lease is held by %s, the primary is %s", r.Holder, p.name)
	}
	want := len(c.config.Members) - 1
	if c.config.Durability != "Asynchronous" && want > 0 && (len(r.Quorums) != 1 || len(r.Quorums[0].Standbys) != want) {
		return fmt.Errorf("the recorded quorums are %v", r.Quorums)
	}
	return nil
}

// settle waits until the cluster is healthy and returns its primary.
func (c *cluster) settle() *instance {
	GinkgoHelper()
	Eventually(c.healthy, 90*time.Second, 100*time.Millisecond).Should(Succeed())
	p, err := c.primary()
	Expect(err).NotTo(HaveOccurred())
	return p
}

// newPrimary waits for another primary than that one.
func (c *cluster) newPrimary(old *instance) *instance {
	GinkgoHelper()
	var p *instance
	Eventually(func() error {
		var err error
		if p, err = c.primary(); err != nil {
			return err
		}
		if p == old {
			return fmt.Errorf("%s is still the primary", p.name)
		}
		return nil
	}, 60*time.Second, 20*time.Millisecond).Should(Succeed())
	return p
}

// write starts a client that writes to whoever is the primary. The function that is returned ends it and proves that nothing was lost.
func (c *cluster) write() (w *writer.Writer, check func() writer.Report) {
	hosts, ports := make([]string, 0, len(c.config.Members)), make([]string, 0, len(c.config.Members))
	for _, m := range c.config.Members {
		hosts, ports = append(hosts, m.Host), append(ports, strconv.Itoa(m.Port))
	}
	dsn := fmt.Sprintf("host=%s port=%s user=app password=%s dbname=app sslmode=require target_session_attrs=read-write",
		strings.Join(hosts, ","), strings.Join(ports, ","), appPassword)
	w = writer.New(writer.Config{Target: writer.Target{DSN: func() (string, error) { return dsn, nil }}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- w.Run(ctx) }()
	DeferCleanup(cancel)
	return w, func() writer.Report {
		GinkgoHelper()
		cancel()
		Expect(<-done).To(Succeed())
		verify, stop := context.WithTimeout(context.Background(), 60*time.Second)
		defer stop()
		report, err := w.Verify(verify, begin)
		Expect(err).NotTo(HaveOccurred())
		Expect(report.Acknowledged).To(BeNumerically(">", 0))
		Expect(report.LostRows).To(BeZero(), "acknowledged rows that are absent: %v", report.Lost)
		Expect(report.Torn).To(BeZero())
		Expect(report.TwoPrimaries).To(BeZero(), "acknowledged by two primaries: %+v", report.Stale)
		AddReportEntry("writer", fmt.Sprintf("%d commits acknowledged, 0 lost, longest gap %.2f s", report.Acknowledged, report.OutageS))
		return report
	}
}

// acked waits until the client got more acknowledgements.
func acked(w *writer.Writer) {
	GinkgoHelper()
	since := time.Now()
	Eventually(func() int { return w.AckedSince(since) }, 60*time.Second, 20*time.Millisecond).Should(BeNumerically(">", 20))
}

func (c *cluster) tearDown() {
	for _, in := range c.instances {
		if in.cmd != nil && in.cmd.Process != nil {
			_ = syscall.Kill(in.cmd.Process.Pid, syscall.SIGCONT)
			_ = syscall.Kill(in.cmd.Process.Pid, syscall.SIGKILL)
			<-in.done
		}
		for pid := range in.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = in.log.Close()
	}
	if CurrentSpecReport().Failed() {
		for _, in := range c.instances {
			out, _ := exec.Command("tail", "-n", "80", in.dir+".log").Output()
			AddReportEntry(in.name+" "+in.dir+".log", string(out))
		}
		return
	}
	if os.Getenv("KUMKI_HA_KEEP") == "" {
		_ = os.RemoveAll(c.root)
	}
}

// wipe gives the instance a new, empty volume.
func (in *instance) wipe() {
	GinkgoHelper()
	data := filepath.Join(in.dir, "data")
	Expect(os.RemoveAll(data)).To(Succeed())
	Expect(os.Mkdir(data, 0o700)).To(Succeed())
	in.c.own(data)
}
