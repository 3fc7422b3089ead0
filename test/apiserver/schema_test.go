package apiserver

import (
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

// cluster makes a manifest as a user would write it: spec is YAML in flow style.
func cluster(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	text := "apiVersion: databases.kumki.dev/v1\nkind: PostgreSQLCluster\nmetadata: {name: " + name + ", namespace: default}\nspec: " + spec + "\n"
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return u
}

func create(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	u := cluster(t, name, spec)
	if err := server.client.Create(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	remove(t, u)
	return u
}

// TestDefaults: the smallest manifest is a complete declaration.
func TestDefaults(t *testing.T) {
	for _, spec := range []string{"{replicas: 3}", "{}", "{storage: {}, replication: {}, service: {}, nodeLost: {}}"} {
		u := create(t, "smallest", spec)
		c := &apiv1.PostgreSQLCluster{}
		if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(u), c); err != nil {
			t.Fatal(err)
		}
		s := c.Spec
		got := []any{
			s.Replicas, s.ImagePullPolicy, s.Storage.Size.String(), s.Storage.ReclaimPolicy, s.Replication.Durability,
			s.Replication.SynchronousStandbys, s.Replication.MaxLagForReads.String(), s.Replication.MaxLagForPromotion.String(),
			s.Service.Type, s.NodeLost.ReplaceAfter.Duration,
		}
		want := []any{
			int32(3), "IfNotPresent", "10Gi", apiv1.ReclaimRetain, apiv1.DurabilityPreferred, int32(1), "256Mi", "64Mi",
			apiv1.ServiceType("ClusterIP"), 30 * time.Minute,
		}
		for i := range want {
			if g, w := toString(got[i]), toString(want[i]); g != w {
				t.Errorf("%s: default %d is %s, want %s", spec, i, g, w)
			}
		}
		if err := server.client.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDefaultsOfInitDB(t *testing.T) {
	u := create(t, "initdb", "{bootstrap: {initdb: {owner: sales}}}")
	got, _, err := unstructured.NestedMap(u.Object, "spec", "bootstrap", "initdb")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"database": "app", "owner": "sales", "encoding": "UTF8", "locale": "C.UTF-8", "dataChecksums": true}
	if toString(got) != toString(want) {
		t.Errorf("initdb is %v, want %v", got, want)
	}
}

// TestGoClientGetsDefaults: a typed client must not send empty values that stand in a default's way.
func TestGoClientGetsDefaults(t *testing.T) {
	c := &apiv1.PostgreSQLCluster{}
	c.Name, c.Namespace = "typed", "default"
	if err := server.client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	remove(t, c)
	if c.Spec.Replicas != 3 || c.Spec.Storage.Size.String() != "10Gi" {
		t.Errorf("spec is %+v", c.Spec)
	}
}

func toString(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(text))
}

// TestRefusedAtCreation: each rule of the schema refuses what it is there for, and says what to do.
func TestRefusedAtCreation(t *testing.T) {
	for _, c := range []struct{ name, spec, message string }{
		{"a", "{replicas: 0}", "spec.replicas: Invalid value: 0"},
		{"a", "{replicas: 33}", "less than or equal to 32"},
		{"a", "{replicas: 2, replication: {synchronousStandbys: 2}}", "synchronousStandbys must be less than replicas"},
		{"a", "{replicas: 1, replication: {durability: Required}}", "Required needs replicas of at least 2"},
		{"a", "{replication: {durability: Sometimes}}", `supported values: "Preferred", "Required", "Asynchronous"`},
		{"a", "{replication: {synchronousStandbys: 0}}", "greater than or equal to 1"},
		{"a", "{replication: {maxLagForReads: -1Mi}}", "replication.maxLagForReads must be 0 or more bytes"},
		{"a", "{replication: {maxLagForPromotion: -1}}", "replication.maxLagForPromotion must be 0 or more bytes"},
		{"a", `{version: "14"}`, `supported values: "15", "16", "17", "18"`},
		{"a", "{storage: {size: 63Mi}}", "storage.size must be 64Mi or more"},
		{"a", "{storage: {size: 1024}}", "storage.size must be 64Mi or more"},
		{"a", "{storage: {walStorage: {size: 1Mi}}}", "size must be 64Mi or more"},
		{"a", "{storage: {walStorage: {}}}", "spec.storage.walStorage.size: Required value"},
		{"a", "{storage: {size: big}}", "spec.storage.size"},
		{"a", "{storage: {reclaimPolicy: Recycle}}", `supported values: "Retain", "Delete"`},
		{"a", "{postgresql: {hba: [everybody may enter]}}", "spec.postgresql.hba[0]"},
		{"a", `{postgresql: {hba: ["host orders sales all md5\nlocal orders sales trust"]}}`, "spec.postgresql.hba[0]"},
		{"a", "{bootstrap: {initdb: {database: postgres}}}", "bootstrap.initdb.database must not be postgres"},
		{"a", "{bootstrap: {initdb: {owner: pg_mine}}}", "bootstrap.initdb.owner must not be"},
		{"a", "{bootstrap: {initdb: {owner: kumki_replication}}}", "bootstrap.initdb.owner must not be"},
		{"a", "{bootstrap: {initdb: {encoding: 'UTF8; DROP'}}}", "spec.bootstrap.initdb.encoding"},
		{"a", "{service: {type: ExternalName}}", `supported values: "ClusterIP", "NodePort", "LoadBalancer"`},
		{"a", "{service: {additional: [{name: rw}]}}", "these are the cluster's own Services"},
		{"a", "{service: {additional: [{name: Upper}]}}", "spec.service.additional[0].name"},
		{"a", "{service: {additional: [{name: a234567890b2345678}]}}", "may not be more than 17"},
		{"a", "{service: {additional: [{name: x}, {name: x}]}}", "Duplicate value"},
		{"a", "{podSecurityContext: {runAsUser: 0}}", "greater than or equal to 1"},
		{"a", "{nodeLost: {replaceAfter: 5s}}", "nodeLost.replaceAfter must be 0s (off) or 10s and more"},
		{"a", "{nodeLost: {replaceAfter: soon}}", "spec.nodeLost.replaceAfter"},
		{strings.Repeat("a", 46), "{}", "metadata.name must have 45 characters or less"},
		{"1a", "{}", "metadata.name must begin with a letter"},
		{"a.b", "{}", "metadata.name must begin with a letter"},
	} {
		err := server.client.Create(t.Context(), cluster(t, c.name, c.spec))
		if err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s %s: the error is %v, want one that says %q", c.name, c.spec, err, c.message)
		}
		if err == nil {
			_ = server.client.Delete(t.Context(), cluster(t, c.name, c.spec))
		}
	}
}

// TestTaken: what looks like the refused and is right.
func TestTaken(t *testing.T) {
	for i, spec := range []string{
		"{replicas: 1}",
		"{replicas: 2, replication: {durability: Asynchronous, synchronousStandbys: 5}}",
		"{replicas: 3, replication: {durability: Required, synchronousStandbys: 2}}",
		"{storage: {size: 64Mi}}", "{storage: {size: 10737418240}}", "{storage: {size: 0.5Ti, walStorage: {size: 100Mi}}}",
		`{postgresql: {hba: ["hostssl  orders sales 10.0.0.0/8 md5", "local orders sales peer"]}}`,
		"{nodeLost: {replaceAfter: 0s}}", "{nodeLost: {replaceAfter: 1h30m}}",
		"{service: {additional: [{name: a234567890b234567}, {name: x, target: Standbys, type: NodePort, nodePort: 30001}]}}",
		"{replication: {maxLagForReads: 0}}",
	} {
		u := cluster(t, "taken", spec)
		if i == 0 {
			u.SetName(strings.Repeat("a", 45))
		}
		if err := server.client.Create(t.Context(), u); err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		if err := server.client.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChanges: what may change on a running cluster, and what may not.
func TestChanges(t *testing.T) {
	const initdb = "bootstrap.initdb is read once"
	for _, c := range []struct{ before, after, message string }{
		{"{storage: {size: 1Gi}}", "{storage: {size: 2Gi}}", ""},
		{"{storage: {size: 1Gi}}", "{storage: {size: 1024Mi}}", ""},
		{"{storage: {size: 1Gi}}", "{storage: {size: 1000Mi}}", "storage.size cannot shrink"},
		{"{storage: {size: 20Gi}}", "{}", "storage.size cannot shrink"},
		{"{storage: {walStorage: {size: 1Gi}}}", "{storage: {walStorage: {size: 2Gi}}}", ""},
		{"{storage: {walStorage: {size: 1Gi}}}", "{storage: {walStorage: {size: 64Mi}}}", "size cannot shrink"},
		{"{storage: {walStorage: {size: 1Gi}}}", "{}", "storage.walStorage cannot be removed"},
		{"{}", "{storage: {walStorage: {size: 1Gi}}}", "storage.walStorage cannot be added"},
		{"{}", "{storage: {storageClassName: fast}}", "storage.storageClassName cannot change"},
		{"{storage: {storageClassName: fast}}", "{storage: {storageClassName: slow}}", "storage.storageClassName cannot change"},
		{"{storage: {storageClassName: fast}}", "{}", "storage.storageClassName cannot change"},
		{
			"{storage: {walStorage: {size: 1Gi, storageClassName: fast}}}", "{storage: {walStorage: {size: 1Gi}}}",
			"storageClassName cannot change",
		},
		{"{storage: {reclaimPolicy: Retain}}", "{storage: {reclaimPolicy: Delete}}", ""},
		{"{bootstrap: {initdb: {database: a}}}", "{bootstrap: {initdb: {database: b}}}", initdb},
		{"{bootstrap: {initdb: {database: a}}}", "{bootstrap: {}}", initdb},
		{"{bootstrap: {initdb: {database: a}}}", "{}", initdb},
		{"{}", "{bootstrap: {initdb: {sql: ['SELECT 1']}}}", initdb},
		{"{bootstrap: {initdb: {database: a}}}", "{bootstrap: {initdb: {database: a}}, replicas: 5}", ""},
		{"{}", "{bootstrap: {}}", ""},
		{"{replicas: 3, replication: {synchronousStandbys: 2}}", "{replicas: 2, replication: {synchronousStandbys: 2}}", "must be less than replicas"},
		{"{replicas: 3}", "{replicas: 1}", ""},
	} {
		u := cluster(t, "changes", c.before)
		if err := server.client.Create(t.Context(), u); err != nil {
			t.Fatalf("%s: %v", c.before, err)
		}
		hasDatabase(t, u)
		next := cluster(t, "changes", c.after)
		next.SetResourceVersion(u.GetResourceVersion())
		err := server.client.Update(t.Context(), next)
		switch {
		case c.message == "" && err != nil:
			t.Errorf("%s -> %s: %v", c.before, c.after, err)
		case c.message != "" && (err == nil || !strings.Contains(err.Error(), c.message)):
			t.Errorf("%s -> %s: the error is %v, want one that says %q", c.before, c.after, err, c.message)
		}
		if err := server.client.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
}

// hasDatabase makes a cluster have a database, as the operator's status tells it.
func hasDatabase(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status": {"systemIdentifier": "7300000000000000001"}}`))
	if err := server.client.Status().Patch(t.Context(), u, patch); err != nil {
		t.Fatal(err)
	}
}

// TestInitDBIsCorrectedBeforeThereIsADatabase: a mistake in it must not cost the cluster.
func TestInitDBIsCorrectedBeforeThereIsADatabase(t *testing.T) {
	u := create(t, "mistaken", "{bootstrap: {initdb: {sql: ['CREAT EXTENSION hstore']}}}")
	change := func(spec string) error {
		next := cluster(t, "mistaken", spec)
		next.SetResourceVersion(u.GetResourceVersion())
		err := server.client.Update(t.Context(), next)
		if err == nil {
			u = next
		}
		return err
	}
	phase := client.RawPatch(types.MergePatchType, []byte(`{"status": {"phase": "Creating"}}`))
	if err := server.client.Status().Patch(t.Context(), u, phase); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{
		"{bootstrap: {initdb: {sql: ['CREATE EXTENSION hstore']}}}", "{}", "{bootstrap: {initdb: {database: a}}}",
	} {
		if err := change(spec); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	hasDatabase(t, u)
	if err := change("{bootstrap: {initdb: {database: b}}}"); err == nil || !strings.Contains(err.Error(), "bootstrap.initdb is read once") {
		t.Errorf("there is a database, and the error is %v", err)
	}
}

func TestScale(t *testing.T) {
	c := &apiv1.PostgreSQLCluster{}
	c.Name, c.Namespace = "scaled", "default"
	if err := server.client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	remove(t, c)
	scale := &autoscalingv1.Scale{}
	if err := server.client.SubResource("scale").Get(t.Context(), c, scale); err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 5
	if err := server.client.SubResource("scale").Update(t.Context(), c, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		t.Fatal(err)
	}
	if c.Spec.Replicas != 5 {
		t.Errorf("replicas is %d", c.Spec.Replicas)
	}
}
