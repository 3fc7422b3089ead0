package desired

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

var update = flag.Bool("update", false, "write the golden files anew")

// smallest is a cluster as the API server hands it out for the smallest manifest.
func smallest() Input {
	files := func(of string) map[string][]byte {
		return map[string][]byte{pki.KeyCert: []byte(of + " certificate"), pki.KeyKey: []byte(of + " key"), pki.KeyCA: []byte("CAs")}
	}
	return Input{
		Cluster: &apiv1.PostgreSQLCluster{
			ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop", UID: "0f6e"},
			Spec: apiv1.PostgreSQLClusterSpec{
				Replicas:        3,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Storage:         apiv1.StorageSpec{Size: resource.MustParse("10Gi"), ReclaimPolicy: apiv1.ReclaimRetain},
				Replication: apiv1.ReplicationSpec{
					Durability: apiv1.DurabilityPreferred, SynchronousStandbys: 1,
					MaxLagForReads: resource.MustParse("256Mi"), MaxLagForPromotion: resource.MustParse("64Mi"),
				},
				Service: apiv1.ServiceSpec{Type: "ClusterIP"},
			},
		},
		OperatorImage:     "registry.example/kumki:1",
		PostgreSQLImage:   "registry.example/postgres:17",
		MajorVersion:      17,
		OperatorNamespace: "kumki-system",
		Members:           3,
		Pods:              3,
		StandbyReady:      true,
		Parameters:        map[string]string{"work_mem": "4MB", "shared_buffers": "64MB"},
		AppPassword:       "s3:cr/et",
		Certificates:      pki.Set{CA: files("CA"), Server: files("server"), Peer: files("peer"), Operator: files("operator")},
	}
}

// full declares everything that there is.
func full() Input {
	in := smallest()
	in.Primary = "orders-1"
	in.SystemIdentifier = "7421"
	in.HBA = []string{"hostssl all report 10.0.0.0/8 scram-sha-256"}
	in.SuperuserPassword = "root's"
	in.ServerCA = []byte("the user's CA")
	in.OperatorNamespace = ""
	in.Cluster.Annotations = map[string]string{naming.AnnotationRestart: "once"}
	spec := &in.Cluster.Spec
	spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	spec.Storage.StorageClassName = ptr("fast")
	spec.Storage.WALStorage = &apiv1.VolumeSpec{Size: resource.MustParse("5Gi"), StorageClassName: ptr("faster")}
	spec.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	spec.Resources.Requests = spec.Resources.Limits
	spec.Bootstrap.InitDB = &apiv1.InitDBSpec{
		Database: "orders", Owner: "sales", Encoding: "UTF8", Locale: "de_DE.UTF-8", DataChecksums: ptr(false), SQL: []string{"CREATE EXTENSION hstore"},
	}
	spec.Replication.Durability, spec.Replication.SynchronousStandbys = apiv1.DurabilityRequired, 2
	spec.Service = apiv1.ServiceSpec{
		Type: "NodePort", Annotations: map[string]string{"example.org/zone": "a"},
		Additional: []apiv1.AdditionalService{
			{
				Name: "public", Target: apiv1.TargetPrimary, Type: "LoadBalancer", Annotations: map[string]string{"lb": "x"},
				Labels:            map[string]string{"team": "sales", naming.LabelCluster: "ignored"},
				LoadBalancerClass: ptr("example.org/lb"), LoadBalancerSourceRanges: []string{"192.0.2.0/24"}, NodePort: ptr(int32(31000)),
			},
			{Name: "reports", Target: apiv1.TargetStandbys, Type: "ClusterIP"},
			{Name: "all", Target: apiv1.TargetAny, Type: "NodePort"},
		},
	}
	spec.TLS = apiv1.TLSSpec{ServerSecret: "orders-cert", ClientCASecret: "company-ca"}
	spec.Superuser.RemoteAccess = true
	spec.Affinity = &corev1.Affinity{}
	spec.Tolerations = []corev1.Toleration{{Key: "database", Operator: corev1.TolerationOpExists}}
	spec.NodeSelector = map[string]string{"disk": "ssd"}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{}
	spec.PriorityClassName = "important"
	spec.PodMetadata = &apiv1.PodMetadata{
		Labels:      map[string]string{"team": "sales", naming.LabelCluster: "ignored", naming.LabelRole: "ignored"},
		Annotations: map[string]string{"scrape": "yes", naming.AnnotationConfigHash: "ignored"},
	}
	spec.PodSecurityContext = &apiv1.PodSecurityContext{RunAsUser: ptr(int64(26)), RunAsGroup: ptr(int64(27)), FSGroup: ptr(int64(28))}
	return in
}

func single() Input {
	in := smallest()
	in.Cluster.Spec.Replicas, in.Members, in.Pods, in.StandbyReady = 1, 1, 1, false
	return in
}

func openShift() Input {
	in := smallest()
	in.OpenShift = true
	return in
}

// shrinking is a suspended cluster on its way from three instances to two.
func shrinking() Input {
	in := smallest()
	in.Cluster.Spec.Replicas, in.Members, in.Pods, in.Suspend = 2, 3, 0, true
	return in
}

func TestGolden(t *testing.T) {
	for name, in := range map[string]Input{
		"smallest": smallest(), "full": full(), "single": single(), "openshift": openShift(), "shrinking": shrinking(),
	} {
		t.Run(name, func(t *testing.T) {
			got := render(t, Objects(in))
			path := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs at line %d; look at the change with -update and git diff", path, firstDifference(got, want))
			}
		})
	}
}

func firstDifference(a, b []byte) int {
	x, y := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	for i := range x {
		if i >= len(y) || x[i] != y[i] {
			return i + 1
		}
	}
	return len(x) + 1
}

// render writes the objects as YAML, with Secrets readable and without what only a server fills in.
func render(t *testing.T, objects []Object) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, o := range objects {
		if s, ok := o.(*corev1.Secret); ok {
			s = s.DeepCopy()
			s.StringData = map[string]string{}
			for k, v := range s.Data {
				s.StringData[k] = string(v)
			}
			s.Data, o = nil, s
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var plain map[string]any
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatal(err)
		}
		delete(plain, "status")
		if text, err = yaml.Marshal(plain); err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}

func TestEqualInputsGiveEqualObjects(t *testing.T) {
	for range 20 {
		if !bytes.Equal(render(t, Objects(full())), render(t, Objects(full()))) {
			t.Fatal("two runs differ")
		}
	}
}

func TestInputIsNotChanged(t *testing.T) {
	in := full()
	before := in.Cluster.DeepCopy()
	for _, o := range Objects(in) {
		o.SetLabels(nil)
	}
	a, _ := json.Marshal(before)
	b, _ := json.Marshal(in.Cluster)
	if !bytes.Equal(a, b) {
		t.Error("building objects changed the cluster")
	}
}

// TestTemplateHash: a pod is replaced when, and only when, its template changed. Whatever instances take over while running is no
// reason.
func TestTemplateHash(t *testing.T) {
	base := TemplateHash(smallest())
	if got := StatefulSet(smallest()).Spec.Template.Annotations[naming.AnnotationTemplateHash]; got != base {
		t.Errorf("the template's annotation is %q, want %q", got, base)
	}
	for name, change := range map[string]func(*Input){
		"parameters":  func(in *Input) { in.Parameters["work_mem"] = "8MB" },
		"replicas":    func(in *Input) { in.Cluster.Spec.Replicas, in.Members, in.Pods = 5, 5, 5 },
		"volume size": func(in *Input) { in.Cluster.Spec.Storage.Size = resource.MustParse("20Gi") },
		"primary":     func(in *Input) { in.Primary = "orders-2" },
		"password":    func(in *Input) { in.AppPassword = "other" },
		"superuser":   func(in *Input) { in.Cluster.Spec.Superuser.RemoteAccess = true },
		"CA":          func(in *Input) { in.Certificates.Peer[pki.KeyCA] = []byte("new") },
		"identifier":  func(in *Input) { in.SystemIdentifier = "1" },
	} {
		in := smallest()
		change(&in)
		if TemplateHash(in) != base {
			t.Errorf("a change of the %s replaces pods", name)
		}
	}
	for name, change := range map[string]func(*Input){
		"operator's image": func(in *Input) { in.OperatorImage = "registry.example/kumki:2" },
		"image":            func(in *Input) { in.PostgreSQLImage = "registry.example/postgres:17.1" },
		"resources": func(in *Input) {
			in.Cluster.Spec.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")}
		},
		"restart":       func(in *Input) { in.Cluster.Annotations = map[string]string{naming.AnnotationRestart: "now"} },
		"server Secret": func(in *Input) { in.Cluster.Spec.TLS.ServerSecret = "mine" },
	} {
		in := smallest()
		change(&in)
		if TemplateHash(in) == base {
			t.Errorf("a change of the %s does not replace pods", name)
		}
	}
}

func TestAbsent(t *testing.T) {
	names := func(in Input) (all []string) {
		for _, o := range Absent(in) {
			all = append(all, o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName())
		}
		return all
	}
	for want, in := range map[string]Input{
		"Secret orders-superuser":                             smallest(),
		"Secret orders-server-tls":                            full(),
		"PodDisruptionBudget orders, Secret orders-superuser": single(),
	} {
		if got := strings.Join(names(in), ", "); got != want {
			t.Errorf("absent are %q, want %q", got, want)
		}
	}
}

// What the instances may do about a missing database is told to them, and does not replace pods.
func TestNoBootstrap(t *testing.T) {
	in := smallest()
	if strings.Contains(string(ConfigText(in)), "noBootstrap") {
		t.Error("a new cluster may have no database")
	}
	in.NoBootstrap = true
	if !Config(in).NoBootstrap {
		t.Error("instances may make a new database beside an earlier one")
	}
	if TemplateHash(in) != TemplateHash(smallest()) {
		t.Error("it replaces pods")
	}
}

func TestReadsFallBackToThePrimary(t *testing.T) {
	in := smallest()
	if got := reads(in)[naming.LabelRole]; got != naming.ValueStandby {
		t.Errorf("with a ready standby, reads go to %q", got)
	}
	in.StandbyReady = false
	if _, ok := reads(in)[naming.LabelRole]; ok {
		t.Error("without a ready standby, reads go nowhere")
	}
}

func TestAdditionalServiceWithoutPrimaryLeadsNowhere(t *testing.T) {
	in := full()
	in.Primary = ""
	for _, o := range Services(in) {
		if s := o.(*corev1.Service); s.Name == "orders-public" && s.Spec.Selector != nil {
			t.Errorf("selector is %v", s.Spec.Selector)
		}
	}
}
