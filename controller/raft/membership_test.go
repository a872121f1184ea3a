package raft_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/internal/testkit/proclog"
)

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	c := start(t, 1, company)
	first := c.servers[0]
	first.apply(set("a", "1"))
	for range 2 {
		s := c.add()
		s.join = []string{first.address}
		s.start()
		s.sees("a", "1")
		eventually(t, "it is promoted", func() bool { return c.leader().node.Promote(t.Context(), s.node.ID()) == nil })
	}
	peers := func(n int) func() bool {
		return func() bool {
			ps, err := c.leader().node.Peers()
			require.NoError(t, err)
			return len(ps) == n
		}
	}
	eventually(t, "three members", peers(3))

	// A follower leaves, then the leader itself.
	l := c.leader()
	follower := c.others(l)[0]
	require.NoError(t, follower.node.Leave(timeout(t, patience)))
	follower.stop()
	eventually(t, "two members", peers(2))
	l = c.leader()
	require.NoError(t, l.node.Leave(timeout(t, patience)))
	l.stop()
	last := c.leader()
	eventually(t, "one member", peers(1))
	last.apply(set("a", "2"))

	// A server that left comes back when it is started with a server to join.
	follower.join, follower.expect = []string{last.address}, 0
	follower.start()
	follower.sees("a", "2")
	eventually(t, "two members again", peers(2))
}

// TestLeaveEndsJoining: a server that leaves as soon as it is a member does not ask to
// be taken in again.
func TestLeaveEndsJoining(t *testing.T) {
	t.Parallel()
	const retry = 2 * time.Second // long enough for it to be still asking when it leaves
	c := start(t, 1, company)
	first := c.servers[0]
	c.edit = func(cfg *raft.Config) { company(cfg); cfg.RetryInterval = retry }
	s := c.add()
	s.join = []string{first.address}
	s.start()
	peers := func() int {
		ps, err := first.node.Peers()
		require.NoError(t, err)
		return len(ps)
	}
	eventually(t, "two members", func() bool { return peers() == 2 })
	require.NoError(t, s.node.Leave(timeout(t, patience)))
	select {
	case <-s.node.JoinLoopDone():
	default:
		t.Fatal("it asks on")
	}
	require.Equal(t, 1, peers())
	s.stop()
}

func TestRemovePeer(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	l := c.leader()
	dead := c.others(l)[0]
	id := dead.node.ID()
	dead.stop()
	require.ErrorIs(t, c.others(l)[0].node.RemovePeer(t.Context(), id), raft.ErrNotLeader)
	require.NoError(t, l.node.RemovePeer(t.Context(), id))
	require.NoError(t, l.node.RemovePeer(t.Context(), id), "it is not there any more")
	peers, err := l.node.Peers()
	require.NoError(t, err)
	require.Len(t, peers, 2)

	// Its own log says that it is a member; it is one again only because it asks.
	dead.join = []string{l.address}
	dead.start()
	l.apply(set("a", "1"))
	dead.sees("a", "1")

	alone := start(t, 1, nil).servers[0].node
	require.Error(t, alone.RemovePeer(t.Context(), alone.ID()))
}

// TestAServerThatLostItsDataComesAnew takes the place of its old self.
func TestAServerThatLostItsDataComesAnew(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	l := c.leader()
	l.apply(set("a", "1"))
	s := c.others(l)[0]
	was := s.node.ID()
	s.stop()
	s.dir = t.TempDir()
	s.start()
	s.sees("a", "1")
	require.NotEqual(t, was, s.node.ID())
	eventually(t, "three members", func() bool {
		peers, err := c.leader().node.Peers()
		require.NoError(t, err)
		for _, p := range peers {
			if p.ID == was {
				return false
			}
		}
		return len(peers) == 3
	})
}

// TestExpectedServersComeOneByOne has no cluster before all are there.
func TestExpectedServersComeOneByOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	for range 3 {
		c.add()
	}
	for i, s := range c.servers {
		s.expect, s.join = 3, c.addresses()
		s.start()
		if i < 2 {
			c.asks(3, c.servers[:i+1]...)
			for _, other := range c.servers[:i+1] {
				require.Empty(t, other.node.Leader().ID)
			}
		}
	}
	c.leader().apply(set("a", "1"))
	for _, s := range c.servers {
		s.sees("a", "1")
	}
}

// TestNeverTwoClusters lets five servers see each other in part: two groups of three
// could be formed, with one server in both.
func TestNeverTwoClusters(t *testing.T) {
	t.Parallel()
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, nil)
			for range 5 {
				c.add()
			}
			as := c.addresses()
			for i, s := range c.servers {
				s.expect = 3
				switch {
				case i < 2:
					s.join = as[:3]
				case i == 2:
					s.join = []string{as[0], as[1]}
					if round%2 == 1 {
						s.join = []string{as[3], as[4]}
					}
				default:
					s.join = as[2:]
				}
			}
			for _, s := range c.servers {
				s.start()
			}
			l := c.leader()
			l.apply(set("a", "1"))
			// Each server is of this cluster, or asks on in vain: it has promised to be of
			// another one, which is never formed.
			for _, s := range c.servers {
				rounds := 10 * len(s.join)
				before := c.dials(s)
				eventually(t, s.name+" is of the cluster, or asks on", func() bool {
					return s.node.Store().View().Switch(nil, "a") == "1" || s.node.Leader().ID == "" && c.dials(s) >= before+rounds
				})
			}
			eventually(t, "all are of one cluster", func() bool {
				clusters := map[string]bool{}
				for _, s := range c.servers {
					peers, err := s.node.Peers()
					require.NoError(t, err)
					if len(peers) > 0 {
						slices.SortFunc(peers, func(a, b raft.Peer) int { return strings.Compare(a.ID, b.ID) })
						clusters[fmt.Sprint(peers)] = true
					}
				}
				return len(clusters) == 1
			})
		})
	}
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	first := c.servers[0]

	// Another cluster's name.
	s := c.add()
	s.join = []string{first.address}
	cfg := s.config()
	cfg.Cluster = "other"
	node, err := raft.Open(cfg)
	require.NoError(t, err)
	defer node.Close()

	// A server of another cluster.
	other := start(t, 1, nil).servers[0]
	other.stop()
	other.expect, other.join = 0, []string{first.address}
	other.c = c
	other.start()

	// An address at which somebody else is.
	liar := c.add()
	liar.join = []string{first.address}
	cfg = liar.config()
	cfg.Advertise = first.address
	cfg.Bind = liar.address
	lying, err := raft.Open(cfg)
	require.NoError(t, err)
	defer lying.Close()

	c.asks(5, s)
	eventually(t, "the server of another cluster leads it, or asks", func() bool {
		return other.node.Leader().ID == other.node.ID() || c.dials(other) >= 5
	})
	peers, err := first.node.Peers()
	require.NoError(t, err)
	require.Len(t, peers, 1)
	require.Empty(t, node.Leader().ID)
	require.Empty(t, lying.Leader().ID)
	first.apply(set("a", "1"))
}

// TestGarbageOnThePort: strangers' bytes disturb nobody.
func TestGarbageOnThePort(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	s := c.servers[0]
	for _, data := range []string{"", "X", "R", "Rxxxxxxxxxxxxxxxx", "P", "P{}\n", "P{\"Op\":\"nonsense\",\"Cluster\":\"remuda\"}\n", "Pnull\n", "P" + string(make([]byte, 100<<10)), "GET / HTTP/1.1\r\n\r\n",
		"P{\"Op\":\"join\",\"Cluster\":\"remuda\"}\n", "P{\"Op\":\"promise\",\"Cluster\":\"remuda\",\"Servers\":[{}]}\n"} {
		conn, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		_, err = io.WriteString(conn, data)
		require.NoError(t, err)
		if len(data) > 2 && data[0] == 'P' && data[len(data)-1] == '\n' {
			line, err := bufio.NewReader(conn).ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, "Error")
		}
		conn.Close()
	}
	s.apply(set("a", "1"))
}

// authority is a CA and its certificates, as PEM files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	a.key = key
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(name, kind string, der []byte) {
	require.NoError(a.t, os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue issues a certificate for a host name and returns its files.
func (a *authority) issue(host string) (cert, key string) {
	a.n++
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(a.n + 1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &private.PublicKey, a.key)
	require.NoError(a.t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(a.t, err)
	cert, key = fmt.Sprintf("%d.pem", a.n), fmt.Sprintf("%d-key.pem", a.n)
	a.write(cert, "CERTIFICATE", der)
	a.write(key, "EC PRIVATE KEY", keyDER)
	return filepath.Join(a.dir, cert), filepath.Join(a.dir, key)
}

// tls is of a server whose certificate is for a host name.
func (a *authority) tls(host string) *raft.TLS {
	cert, key := a.issue(host)
	loaded, err := raft.LoadTLS(filepath.Join(a.dir, "ca.pem"), cert, key, host)
	require.NoError(a.t, err)
	return loaded
}

func TestTLS(t *testing.T) {
	t.Parallel()
	const host = raft.DefaultServerName
	ca := newAuthority(t)
	c := start(t, 3, func(cfg *raft.Config) { cfg.TLS = ca.tls(host) })
	c.leader().apply(set("a", "1"))
	for _, s := range c.servers {
		s.sees("a", "1")
	}

	join := func(tls *raft.TLS) *server {
		s := c.add()
		s.join = c.addresses()[:3]
		c.edit = func(cfg *raft.Config) { cfg.TLS = tls }
		s.start()
		return s
	}
	strangers := []*server{
		join(nil), // plain TCP
		join(newAuthority(t).tls(host)),
		join(ca.tls("other.name")), // it asks the servers for another name
	}
	c.asks(3, strangers...)
	for _, s := range strangers {
		require.Empty(t, s.node.Leader().ID)
	}

	// A client without a certificate gets no answer, and so does one whose certificate is of
	// the same CA and bears another name.
	client, err := tls.LoadX509KeyPair(ca.issue("gateway.remuda"))
	require.NoError(t, err)
	server, err := tls.LoadX509KeyPair(ca.issue(host))
	require.NoError(t, err)
	answer := func(certs ...tls.Certificate) (string, error) {
		conn, err := tls.Dial("tcp", c.servers[0].address, &tls.Config{InsecureSkipVerify: true, Certificates: certs})
		if err != nil {
			return "", err
		}
		defer conn.Close()
		if _, err = io.WriteString(conn, "P{\"Op\":\"hello\",\"Cluster\":\"remuda\"}\n"); err != nil {
			return "", err
		}
		return bufio.NewReader(conn).ReadString('\n')
	}
	line, err := answer()
	require.Error(t, err)
	require.Empty(t, line)
	line, err = answer(client)
	require.Error(t, err)
	require.Empty(t, line)
	line, err = answer(server)
	require.NoError(t, err)
	require.Contains(t, line, "ClusterID")

	_, err = raft.LoadTLS("none", "none", "none", host)
	require.Error(t, err)
	_, err = raft.LoadTLS(os.Args[0], "none", "none", host)
	require.ErrorContains(t, err, "contains no PEM certificate")
	cert, key := ca.issue("gateway.remuda")
	_, err = raft.LoadTLS(filepath.Join(ca.dir, "ca.pem"), cert, key, host)
	require.ErrorContains(t, err, `does not bear the servers' name "server.remuda"`)
}

func TestLeaveIsGivenUpWithItsContext(t *testing.T) {
	t.Parallel()
	c := start(t, 3, nil)
	l := c.leader()
	for _, s := range c.others(l) {
		c.net.partition(s.name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, l.node.Leave(ctx))
}

// TestAServerThatLostItsDataTakesNothingBeforeItJoins: its leader still writes to its address,
// for the ID that it had. With entries of a cluster that it has not joined it could join none.
func TestAServerThatLostItsDataTakesNothingBeforeItJoins(t *testing.T) {
	t.Parallel()
	log := &proclog.Buffer{}
	c := start(t, 3, func(cfg *raft.Config) {
		if filepath.Base(cfg.DataDir) == "lost" {
			cfg.Logger = log.Logger()
		}
	})
	l := c.leader()
	s := c.others(l)[0]
	join := s.join
	s.stop()
	s.dir, s.expect, s.join = filepath.Join(t.TempDir(), "lost"), 0, nil
	s.start()
	l.apply(set("a", "1"))
	var peers []raft.Peer
	eventually(t, "the leader's attempt", func() bool {
		peers, _ = s.node.Peers()
		return strings.Contains(log.String(), "has not joined a cluster") || len(peers) > 0
	})
	require.Empty(t, peers, "it has the log of a cluster that it has not joined")

	s.stop()
	s.join = join
	s.start()
	s.sees("a", "1")
	eventually(t, "it is a voter", func() bool { m, _ := c.leader().member(s.node.ID()); return m.Voter })
}
