package testbed

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	corev1 "k8s.io/api/core/v1"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/writer"
)

// Credentials are what a client of a cluster needs. They are kept, so that a client works while the API server is down.
type Credentials struct {
	postgres *Postgres
	secret   string

	mu                       sync.Mutex
	user, password, database string
	caFile                   string
}

// Credentials reads the application's Secret.
func (p *Postgres) Credentials(ctx context.Context) (*Credentials, error) {
	return p.credentials(ctx, naming.SecretApp(p.Name))
}

// SuperuserCredentials reads the superuser's Secret.
func (p *Postgres) SuperuserCredentials(ctx context.Context) (*Credentials, error) {
	return p.credentials(ctx, naming.SecretSuperuser(p.Name))
}

func (p *Postgres) credentials(ctx context.Context, secret string) (*Credentials, error) {
	c := &Credentials{postgres: p, secret: secret, caFile: filepath.Join(p.dir, p.Namespace+"-"+secret+"-ca.crt")}
	return c, c.Refresh(ctx)
}

// Refresh reads the Secret again, as a client does whose Secret is mounted.
func (c *Credentials) Refresh(ctx context.Context) error {
	secret := &corev1.Secret{}
	if err := c.postgres.Client.Get(ctx, c.postgres.key(c.secret), secret); err != nil {
		return err
	}
	for _, key := range []string{"username", "password", "database", "ca.crt"} {
		if len(secret.Data[key]) == 0 {
			return fmt.Errorf("secret %s has no %s", secret.Name, key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user, c.password = string(secret.Data["username"]), string(secret.Data["password"])
	c.database = string(secret.Data["database"])
	// Replaced as a whole: a client may be reading it.
	if err := os.WriteFile(c.caFile+".new", secret.Data["ca.crt"], 0o600); err != nil {
		return err
	}
	return os.Rename(c.caFile+".new", c.caFile)
}

// AppSecret returns the Secret with the application's credentials.
func (p *Postgres) AppSecret(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := p.Client.Get(ctx, p.key(naming.SecretApp(p.Name)), secret)
	return secret, err
}

// DSN of an address. The server's certificate has to come from the cluster's CA.
func (c *Credentials) DSN(host string, port int32) func() (string, error) {
	return func() (string, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s sslmode=verify-ca sslrootcert=%s",
			host, port, quote(c.user), quote(c.password), quote(c.database), quote(c.caFile)), nil
	}
}

// quote writes a value of a connection string, https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-KEYWORD-VALUE
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// Service returns a Service of the cluster's namespace.
func (p *Postgres) Service(ctx context.Context, name string) (*corev1.Service, error) {
	service := &corev1.Service{}
	err := p.Client.Get(ctx, p.key(name), service)
	return service, err
}

// Writer makes a writing client that comes from a node and goes through <cluster>-rw.
func (c *Credentials) Writer(ctx context.Context, node string) (*writer.Writer, error) {
	service, err := c.postgres.Service(ctx, naming.ServiceRW(c.postgres.Name))
	if err != nil {
		return nil, err
	}
	dial, err := c.postgres.Dial(ctx, node)
	if err != nil {
		return nil, err
	}
	return writer.New(writer.Config{Target: writer.Target{DSN: c.DSN(service.Spec.ClusterIP, naming.PortPostgreSQL), Dial: dial}}), nil
}

// Session opens a connection from a node to an address, within 5 s.
func (c *Credentials) Session(ctx context.Context, node, host string, port int32) (*pgconn.PgConn, error) {
	dial, err := c.postgres.Dial(ctx, node)
	if err != nil {
		return nil, err
	}
	dsn, err := c.DSN(host, port)()
	if err != nil {
		return nil, err
	}
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = 5 * time.Second
	if dial != nil {
		config.DialFunc = pgconn.DialFunc(dial)
	}
	return pgconn.ConnectConfig(ctx, config)
}

// Query runs SQL through a new connection from a node to an address, within 10 s, and returns the first column as text.
func (c *Credentials) Query(ctx context.Context, node, address, sql string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := c.Session(ctx, node, host, int32(number))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, row := range results[len(results)-1].Rows {
		out = append(out, string(row[0]))
	}
	return out, nil
}

// QueryPod runs SQL on one instance, from the node that it is on.
func (c *Credentials) QueryPod(ctx context.Context, pod *corev1.Pod, sql string) ([]string, error) {
	return c.Query(ctx, pod.Spec.NodeName, address(pod.Status.PodIP, naming.PortPostgreSQL), sql)
}

// QueryService runs SQL through a Service, from a node.
func (c *Credentials) QueryService(ctx context.Context, node, service, sql string) ([]string, error) {
	s, err := c.postgres.Service(ctx, service)
	if err != nil {
		return nil, err
	}
	return c.Query(ctx, node, address(s.Spec.ClusterIP, naming.PortPostgreSQL), sql)
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
