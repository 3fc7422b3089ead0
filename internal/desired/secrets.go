package desired

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

// TypeServiceBinding is the type of the Secrets that applications read, after the Service Binding Specification
// (https://servicebinding.io/spec/core/1.1.0/#provisioned-service).
const TypeServiceBinding corev1.SecretType = "servicebinding.io/postgresql"

// KeyPassword of the Secrets with credentials; a value that is found there stays, so users may set their own.
const KeyPassword = "password"

// Secrets are the cluster's Secrets: certificates and credentials.
func Secrets(in Input) []Object {
	cluster := in.Cluster.Name
	objects := []Object{
		secret(in, naming.SecretCA(cluster), corev1.SecretTypeTLS, in.Certificates.CA),
		secret(in, naming.SecretPeer(cluster), corev1.SecretTypeTLS, in.Certificates.Peer),
		secret(in, naming.SecretOperator(cluster), corev1.SecretTypeTLS, in.Certificates.Operator),
	}
	if in.Cluster.Spec.TLS.ServerSecret == "" {
		objects = append(objects, secret(in, naming.SecretServer(cluster), corev1.SecretTypeTLS, in.Certificates.Server))
	}
	_, database, owner := initDB(in)
	objects = append(objects, credentials(in, naming.SecretApp(cluster), login{owner, in.AppPassword, database}))
	if in.Cluster.Spec.Superuser.RemoteAccess {
		l := login{naming.RoleSuperuser, in.SuperuserPassword, naming.RoleSuperuser}
		objects = append(objects, credentials(in, naming.SecretSuperuser(cluster), l))
	}
	return objects
}

func secret(in Input, name string, kind corev1.SecretType, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: typeMeta("v1", "Secret"), ObjectMeta: meta(in, name), Type: kind, Data: data,
	}
}

type login struct{ user, password, database string }

// credentials is a Secret that says in the ways of several clients how to reach the primary.
func credentials(in Input, name string, l login) *corev1.Secret {
	host := naming.ServiceRW(in.Cluster.Name) + "." + in.Cluster.Namespace + ".svc"
	port := strconv.Itoa(naming.PortPostgreSQL)
	ca := in.ServerCA
	if ca == nil {
		ca = in.Certificates.Peer[pki.KeyCA]
	}
	text := map[string]string{
		"type":          "postgresql",
		"provider":      "kumki",
		"host":          host,
		"port":          port,
		"database":      l.database,
		"username":      l.user,
		"user":          l.user,
		KeyPassword:     l.password,
		"uri":           uri(l, []string{host + ":" + port}, "sslmode=require"),
		"jdbc-uri":      jdbc(l, host+":"+port),
		"uri-multihost": uri(l, podAddresses(in), "target_session_attrs=read-write&sslmode=require"),
		"pgpass":        pgpass(l, host, port),
	}
	data := map[string][]byte{pki.KeyCA: ca}
	for k, v := range text {
		data[k] = []byte(v)
	}
	return secret(in, name, TypeServiceBinding, data)
}

func podAddresses(in Input) []string {
	var all []string
	for _, m := range members(in) {
		all = append(all, m.Host+":"+strconv.Itoa(m.Port))
	}
	return all
}

// uri is a connection URI of libpq (https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS).
func uri(l login, hosts []string, query string) string {
	u := url.URL{
		Scheme: "postgresql", User: url.UserPassword(l.user, l.password), Host: strings.Join(hosts, ","),
		Path: "/" + l.database, RawQuery: query,
	}
	return u.String()
}

func jdbc(l login, host string) string {
	q := url.Values{"user": {l.user}, "password": {l.password}, "sslmode": {"require"}}
	return fmt.Sprintf("jdbc:postgresql://%s/%s?%s", host, url.PathEscape(l.database), q.Encode())
}

// pgpass is a line of a password file (https://www.postgresql.org/docs/current/libpq-pgpass.html).
func pgpass(l login, host, port string) string {
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace
	return strings.Join([]string{host, port, escape(l.database), escape(l.user), escape(l.password)}, ":") + "\n"
}
