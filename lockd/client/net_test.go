package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/lockd/client"
)

// authority signs certificates for this package's tests.
var authority = sync.OnceValue(func() (ca struct {
	pool *x509.CertPool
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}) {
	ca.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		panic(err)
	}
	ca.cert, _ = x509.ParseCertificate(der)
	ca.pool = x509.NewCertPool()
	ca.pool.AddCert(ca.cert)
	return ca
})

func certificate(t testing.TB, name string) tls.Certificate {
	t.Helper()
	ca := authority()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, ca.cert, &key.PublicKey, ca.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func clientTLS(t testing.TB) *tls.Config {
	return &tls.Config{RootCAs: authority().pool, Certificates: []tls.Certificate{certificate(t, "primary")}}
}

func serverTLS(t testing.TB) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{certificate(t, "lockd")},
		ClientCAs:    authority().pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

func TestTLSProvesWhoAsks(t *testing.T) {
	cfg := config(tcpServer(t, serverTLS(t), func(p *peer) {
		p.acquire(0)
		if got := p.conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName; got != "primary" {
			p.fail("the client is %q", got)
		}
		p.send(granted(5))
		p.silent()
	}))
	cfg.TLS = clientTLS(t)
	require.EqualValues(t, 5, get(t, cfg).Token())
}

// trouble is Acquire's error when its context ends after the first warning.
func trouble(t *testing.T, cfg client.Config) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: writer(func([]byte) { cancel() })})
	_, err := newClient(t, cfg).Acquire(ctx)
	require.ErrorIs(t, err, context.Canceled)
	return err
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// TestTLSFails: what may be repaired is tried until the context ends.
func TestTLSFails(t *testing.T) {
	t.Parallel()
	ends := func(p *peer) { _, _ = p.read() }
	for name, tc := range map[string]struct {
		tls  *tls.Config
		want string
	}{
		"no client certificate": {&tls.Config{RootCAs: authority().pool}, "certificate"},
		"unknown server":        {&tls.Config{RootCAs: x509.NewCertPool()}, "unknown authority"},
		"server's name":         {&tls.Config{RootCAs: authority().pool, ServerName: "elsewhere"}, "elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(tcpServer(t, serverTLS(t), ends))
			cfg.TLS = tc.tls
			require.ErrorContains(t, trouble(t, cfg), tc.want)
		})
	}
}

// TestTLSCloseDoesNotSayGoodbye: a lockd that hangs would not read it, and TLS
// would wait 5 s for that. Over a pipe nothing is buffered.
func TestTLSCloseDoesNotSayGoodbye(t *testing.T) {
	theirs, ours := serverTLS(t), clientTLS(t)
	ours.ServerName = "127.0.0.1"
	synctest.Test(t, func(t *testing.T) {
		// The bubble's clock starts in the year 2000.
		theirs.Time = func() time.Time { return authority().cert.NotBefore.Add(time.Hour) }
		ours.Time = theirs.Time
		c := newClient(t, config("/lockd.sock"))
		client.SetDial(c, func(ctx context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				p := newPeer(t, tls.Server(far, theirs))
				p.acquire(0)
				p.send(granted(5))
				time.Sleep(time.Minute)
			}()
			conn := tls.Client(near, ours)
			return conn, conn.HandshakeContext(ctx)
		})
		g := acquire(t, c)
		start := time.Now()
		require.NoError(t, g.Close())
		require.Zero(t, time.Since(start))
		time.Sleep(time.Hour)
	})
}

// fullBacklog is a listener whose queue is full, so that connecting to it hangs:
// the kernel drops what asks.
func fullBacklog(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	require.NoError(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 10 {
		conn, err := net.DialTimeout("tcp", addr, 50*time.Millisecond)
		if err != nil {
			return "tcp://" + addr
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Skip("this kernel does not keep connections waiting")
	return ""
}

func TestConnectHangs(t *testing.T) {
	t.Parallel()
	hangs := func(t *testing.T, addr string, c *tls.Config) {
		cfg := config(addr)
		cfg.TLS = c
		cfg.ConnectTimeout = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := newClient(t, cfg).Acquire(ctx)
		require.ErrorIs(t, err, context.Canceled, "it does not wait for an hour")
		cfg.ConnectTimeout = 20 * time.Millisecond
		require.ErrorContains(t, trouble(t, cfg), "connect to lockd at "+addr, "it gives up this attempt")
	}
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		hangs(t, fullBacklog(t), nil)
	})
	t.Run("tls handshake", func(t *testing.T) {
		t.Parallel()
		hangs(t, tcpServer(t, nil, (*peer).silent), clientTLS(t))
	})
}

// TestSessionOverTCP is one case of TestSession on a real connection.
func TestSessionOverTCP(t *testing.T) {
	t.Parallel()
	const answered = 2
	last := make(chan time.Time, 1)
	cfg := config(tcpServer(t, nil, func(p *peer) {
		p.acquire(0)
		p.send(granted(5))
		for range answered {
			p.ping()
			p.send(pong)
		}
		last <- time.Now()
		p.silent()
	}))
	cfg.SessionTTL = 8 * time.Second
	start := time.Now()
	g := get(t, cfg)
	require.ErrorContains(t, lost(t, g), "session")
	require.GreaterOrEqual(t, time.Since(start), answered*cfg.SessionTTL/3+cfg.SessionTTL)
	// It is late only by what this machine is late. How late it is at most is for the fake
	// clock of TestSession to say.
	require.Less(t, time.Since(<-last), 10*cfg.SessionTTL)
}
