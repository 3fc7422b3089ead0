package desired

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Names of ports.
const (
	portPostgreSQL = "postgresql"
	portAPI        = "api"
	portProbe      = "probe"
)

// Services are the cluster's own Services and the additional ones.
func Services(in Input) []Object {
	cluster := in.Cluster.Name
	any := Selector(cluster)
	objects := []Object{
		// No selector here: the field belongs to the leader, who points it at itself by compare-and-swap.
		clientService(in, naming.ServiceRW(cluster), nil),
		clientService(in, naming.ServiceRO(cluster), reads(in)),
		clientService(in, naming.ServiceR(cluster), any),
		nodesService(in),
	}
	for _, a := range in.Cluster.Spec.Service.Additional {
		objects = append(objects, additionalService(in, a))
	}
	return objects
}

// AdditionalServiceName is the name of the Service made from that template.
func AdditionalServiceName(cluster string, a apiv1.AdditionalService) string {
	return cluster + "-" + a.Name
}

// reads selects standbys, and any instance when no standby is ready: reads go to the primary rather than nowhere.
func reads(in Input) map[string]string {
	selector := Selector(in.Cluster.Name)
	if in.StandbyReady {
		selector[naming.LabelRole] = naming.ValueStandby
	}
	return selector
}

func clientService(in Input, name string, selector map[string]string) *corev1.Service {
	spec := in.Cluster.Spec.Service
	s := service(in, name, selector)
	s.Annotations = copyOf(spec.Annotations)
	s.Spec.Type = serviceType(spec.Type)
	return s
}

func serviceType(t apiv1.ServiceType) corev1.ServiceType {
	if t == "" {
		return corev1.ServiceTypeClusterIP
	}
	return corev1.ServiceType(t)
}

func service(in Input, name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   typeMeta("v1", "Service"),
		ObjectMeta: meta(in, name),
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeClusterIP,
			Selector: selector,
			Ports:    []corev1.ServicePort{servicePort(portPostgreSQL, naming.PortPostgreSQL)},
		},
	}
}

// servicePort names the target by number: the Service <cluster>-rw must not depend on a pod's port names.
func servicePort(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, TargetPort: intstr.FromInt32(port), Protocol: corev1.ProtocolTCP}
}

// nodesService gives each pod a DNS name from its first moment on: instances have to find each other before they are ready.
func nodesService(in Input) *corev1.Service {
	s := service(in, naming.ServiceNodes(in.Cluster.Name), Selector(in.Cluster.Name))
	s.Spec.ClusterIP = corev1.ClusterIPNone
	s.Spec.PublishNotReadyAddresses = true
	s.Spec.Ports = append(s.Spec.Ports, servicePort(portAPI, naming.PortAPI), servicePort(portProbe, naming.PortProbe))
	return s
}

func additionalService(in Input, a apiv1.AdditionalService) *corev1.Service {
	s := service(in, AdditionalServiceName(in.Cluster.Name, a), additionalSelector(in, a.Target))
	own := s.Labels
	s.Labels = copyOf(a.Labels)
	for k, v := range own {
		s.Labels[k] = v
	}
	s.Annotations = copyOf(a.Annotations)
	s.Spec.Type = serviceType(a.Type)
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.Spec.LoadBalancerClass = a.LoadBalancerClass
		s.Spec.LoadBalancerSourceRanges = a.LoadBalancerSourceRanges
	}
	if s.Spec.Type != corev1.ServiceTypeClusterIP && a.NodePort != nil {
		s.Spec.Ports[0].NodePort = *a.NodePort
	}
	return s
}

// additionalSelector leads to nobody while there is no primary.
func additionalSelector(in Input, target apiv1.ServiceTarget) map[string]string {
	switch target {
	case apiv1.TargetStandbys:
		return reads(in)
	case apiv1.TargetAny:
		return Selector(in.Cluster.Name)
	}
	if in.Primary == "" {
		return nil
	}
	return map[string]string{naming.LabelPod: in.Primary}
}

// DisruptionBudget lets one instance go at a time; nil for a single instance, which a budget could only lock onto its node.
func DisruptionBudget(in Input) *policyv1.PodDisruptionBudget {
	if in.Cluster.Spec.Replicas < 2 {
		return nil
	}
	one, always := intstr.FromInt32(1), policyv1.AlwaysAllow
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   typeMeta("policy/v1", "PodDisruptionBudget"),
		ObjectMeta: meta(in, in.Cluster.Name),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one,
			Selector:       &metav1.LabelSelector{MatchLabels: Selector(in.Cluster.Name)},
			// A broken instance must not keep its node from being drained; the good ones stay protected.
			UnhealthyPodEvictionPolicy: &always,
		},
	}
}

// NetworkPolicy lets everybody in to PostgreSQL and to probes and metrics, and to the instances' API the cluster's own pods and
// the operator alone.
func NetworkPolicy(in Input) *networkingv1.NetworkPolicy {
	api := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: Selector(in.Cluster.Name)}}}
	if in.OperatorNamespace == "" {
		api = nil // from everywhere: the operator has no address that could be named
	} else {
		api = append(api, networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"kubernetes.io/metadata.name": in.OperatorNamespace},
		}})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   typeMeta("networking.k8s.io/v1", "NetworkPolicy"),
		ObjectMeta: meta(in, in.Cluster.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: Selector(in.Cluster.Name)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{Ports: []networkingv1.NetworkPolicyPort{policyPort(naming.PortPostgreSQL), policyPort(naming.PortProbe)}},
				{Ports: []networkingv1.NetworkPolicyPort{policyPort(naming.PortAPI)}, From: api},
			},
		},
	}
}

func policyPort(port int32) networkingv1.NetworkPolicyPort {
	number, protocol := intstr.FromInt32(port), corev1.ProtocolTCP
	return networkingv1.NetworkPolicyPort{Port: &number, Protocol: &protocol}
}

// Absent are objects that the input says should not be: the operator deletes them when they exist and are its own. Additional
// Services that are declared no more are not among them; they are found by label.
func Absent(in Input) []Object {
	var objects []Object
	cluster := in.Cluster.Name
	if DisruptionBudget(in) == nil {
		objects = append(objects, &policyv1.PodDisruptionBudget{
			TypeMeta: typeMeta("policy/v1", "PodDisruptionBudget"), ObjectMeta: meta(in, cluster),
		})
	}
	if !in.Cluster.Spec.Superuser.RemoteAccess {
		objects = append(objects, secret(in, naming.SecretSuperuser(cluster), TypeServiceBinding, nil))
	}
	if in.Cluster.Spec.TLS.ServerSecret != "" {
		objects = append(objects, secret(in, naming.SecretServer(cluster), corev1.SecretTypeTLS, nil))
	}
	return objects
}
