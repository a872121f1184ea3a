package lockd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/lockd"
	lockclient "remuda/lockd/client"
	"remuda/lockd/lock"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.cert, a.key = a.sign("authority", nil)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(a.t, err)
	return cert, key
}

// tls is the TLS of somebody with that name.
func (a *authority) tls(name string) *tls.Config {
	a.t.Helper()
	cert, key := a.sign(name, a)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		RootCAs:      a.pool, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}
}

// remote is a lockd inside the test, for holders over TCP.
type remote struct {
	t    *testing.T
	ca   *authority
	addr string
}

// A holder that a slow machine does not let run for some seconds keeps its session.
var remoteTimes = lock.Times{Reconnect: time.Second, SessionTTL: 8 * time.Second, LockDelay: 8 * time.Second}

func newRemote(t *testing.T) *remote {
	t.Helper()
	r := &remote{t: t, ca: newAuthority(t)}
	cfg := lockd.DefaultConfig()
	dir := t.TempDir()
	cfg.Socket, cfg.State, cfg.Listen, cfg.TLS = dir+"/s", dir+"/state", "127.0.0.1:0", r.ca.tls("lockd")
	cfg.Times, cfg.Logger = remoteTimes, hclog.NewNullLogger()
	listening := make(chan net.Addr, 1)
	cfg.OnListen = func(a net.Addr) { listening <- a }
	server, err := lockd.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	r.addr = (<-listening).String()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return r
}

func (r *remote) client(addr, identity, holder string, tune func(*lockclient.Config)) *lockclient.Client {
	r.t.Helper()
	cfg := lockclient.DefaultConfig()
	cfg.Addr, cfg.TLS, cfg.Group, cfg.Holder = "tcp://"+addr, r.ca.tls(identity), "g", holder
	cfg.SessionTTL = remoteTimes.SessionTTL
	if tune != nil {
		tune(&cfg)
	}
	c, err := lockclient.New(cfg)
	require.NoError(r.t, err)
	return c
}

// cable is a network connection that can be cut without either side noticing.
type cable struct {
	ln  net.Listener
	mu  sync.Mutex
	cut bool
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cable{ln: ln}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			t.Cleanup(func() { _, _ = in.Close(), out.Close() })
			go c.carry(out, in)
			go c.carry(in, out)
		}
	}()
	return c
}

func (c *cable) carry(to io.Writer, from io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return // its end is not passed on either
		}
		c.mu.Lock()
		cut := c.cut
		c.mu.Unlock()
		if !cut {
			_, _ = to.Write(buf[:n])
		}
	}
}

func (c *cable) pull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
}

// TestRemoteHolderGivesUpFirst: cut off from lockd, a holder knows that its lock
// is lost well before anybody else is granted it.
func TestRemoteHolderGivesUpFirst(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	wire := newCable(t, r.addr)
	a, err := r.client(wire.ln.Addr().String(), "node-a", "primary", nil).Acquire(t.Context())
	require.NoError(t, err)
	defer a.Close()
	granted := make(chan time.Time, 1)
	go func() {
		b, err := r.client(r.addr, "node-b", "shadow", nil).Acquire(t.Context())
		if err == nil {
			granted <- time.Now()
			if b.Token() != a.Token()+1 {
				t.Errorf("token %d follows %d", b.Token(), a.Token())
			}
			_ = b.Close()
		}
		close(granted)
	}()
	// It keeps the lock for longer than its TTL while it is connected.
	select {
	case <-a.Lost():
		t.Fatalf("lost without a reason: %v", a.Err())
	case <-granted:
		t.Fatal("two hold the lock")
	case <-time.After(remoteTimes.SessionTTL * 3 / 2):
	}
	wire.pull()
	<-a.Lost()
	lost := time.Now()
	at, ok := <-granted
	require.True(t, ok)
	require.Greater(t, at.Sub(lost), remoteTimes.LockDelay/2, "the holder has the lock-delay to end its processes")
}

func TestRemoteSessionThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	_, err := r.client(r.addr, "node-a", "primary", func(c *lockclient.Config) { c.SessionTTL = time.Minute }).Acquire(t.Context())
	var refused *lockclient.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Message, "session TTL is 1m0s: must be at most lockd's, which is 8s")
}

func TestRemoteStrangersAreRefused(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	stranger := newAuthority(t).tls("node-a")
	stranger.RootCAs = r.ca.pool
	_, err := r.client(r.addr, "", "primary", func(c *lockclient.Config) { c.TLS = stranger }).Acquire(ctx)
	require.Error(t, err, "a certificate of another authority")
	g, err := r.client(r.addr, "node-a", "primary", nil).Acquire(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(1), g.Token(), "the stranger was never granted anything")
	require.NoError(t, g.Close())
}

func TestTimesThatAreUnsafeAreRefused(t *testing.T) {
	t.Parallel()
	for want, times := range map[string]lock.Times{
		"lock-delay is 400ms: must be at least 501ms": {Reconnect: 1, SessionTTL: time.Second, LockDelay: 400 * time.Millisecond},
		"lock-delay is 4s: must be at least 4.1s":     {Reconnect: 1, SessionTTL: time.Hour, LockDelay: 4 * time.Second},
		"session-ttl is 10ms: must be at least 1s":    {Reconnect: 1, SessionTTL: 10 * time.Millisecond, LockDelay: time.Second},
		"reconnect-window is -1s":                     {Reconnect: -time.Second, SessionTTL: time.Second, LockDelay: time.Second},
	} {
		cfg := lockd.DefaultConfig()
		cfg.Socket, cfg.State, cfg.Times = "s", "t", times
		_, err := lockd.New(cfg)
		require.ErrorContains(t, err, want)
	}
}
