package desired

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/kumki-dev/kumki/internal/naming"
)

// ServiceAccount of the database pods. Its token is mounted into the database container alone, see StatefulSet.
func ServiceAccount(in Input) *corev1.ServiceAccount {
	no := false
	return &corev1.ServiceAccount{
		TypeMeta:                     typeMeta("v1", "ServiceAccount"),
		ObjectMeta:                   meta(in, naming.ServiceAccount(in.Cluster.Name)),
		AutomountServiceAccountToken: &no,
	}
}

// Role of the database pods: the leadership Lease, the pods of their own cluster, and the Service that leads to the primary; nothing
// else, and each by its name.
func Role(in Input) *rbacv1.Role {
	cluster := in.Cluster.Name
	pods := make([]string, in.Members)
	for i := range pods {
		pods[i] = naming.Pod(cluster, i)
	}
	lease := []string{naming.Lease(cluster)}
	return &rbacv1.Role{
		TypeMeta:   typeMeta("rbac.authorization.k8s.io/v1", "Role"),
		ObjectMeta: meta(in, naming.ServiceAccount(cluster)),
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: lease,
				Verbs: []string{"create", "get", "list", "patch", "update", "watch"},
			},
			{
				APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: pods,
				Verbs: []string{"get"},
			},
			{
				APIGroups: []string{""}, Resources: []string{"services"}, ResourceNames: []string{naming.ServiceRW(cluster)},
				Verbs: []string{"get", "patch", "update"},
			},
		},
	}
}

// RoleBinding gives the Role to the ServiceAccount.
func RoleBinding(in Input) *rbacv1.RoleBinding {
	name := naming.ServiceAccount(in.Cluster.Name)
	return &rbacv1.RoleBinding{
		TypeMeta:   typeMeta("rbac.authorization.k8s.io/v1", "RoleBinding"),
		ObjectMeta: meta(in, name),
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: in.Cluster.Namespace}},
	}
}
