package raft_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
)

const (
	secret = "0123456789abcdef0123456789abcdef"
	magic  = "remuda-raft-auth-1\n"
)

func secured(cfg *raft.Config) { cfg.Secret = secret }

func TestSecret(t *testing.T) {
	t.Parallel()
	c := start(t, 3, secured)
	c.leader().apply(set("a", "1"))
	for _, s := range c.servers {
		s.sees("a", "1")
	}
	join := func(secret string) *server {
		s := c.add()
		s.join = c.addresses()[:3]
		c.edit = func(cfg *raft.Config) { cfg.Secret = secret }
		s.start()
		return s
	}
	strangers := []*server{join(""), join("fedcba9876543210fedcba9876543210")}
	c.asks(3, strangers...)
	for _, s := range strangers {
		require.Empty(t, s.node.Leader().ID)
	}
	peers, err := c.leader().node.Peers()
	require.NoError(t, err)
	require.Len(t, peers, 3)
}

// answered returns what a server sends on a connection until it closes it.
func answered(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	got, _ := io.ReadAll(conn)
	return got
}

// TestNoAnswerBeforeTheSecret: a server sends nothing but its nonce to a client that has
// not proven that it knows the secret.
func TestNoAnswerBeforeTheSecret(t *testing.T) {
	t.Parallel()
	s := start(t, 1, secured).servers[0]
	nonce := bytes.Repeat([]byte{7}, 32)
	for name, data := range map[string]string{
		"an RPC":          `P{"Op":"hello","Cluster":"remuda"}` + "\n" + string(make([]byte, 100)),
		"Raft":            "R" + string(make([]byte, 100)),
		"another version": "remuda-raft-auth-2\n" + string(nonce),
	} {
		conn, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		_, err = io.WriteString(conn, data)
		require.NoError(t, err)
		require.Empty(t, answered(t, conn), name)
		conn.Close()
	}

	// try makes the handshake with the proof that prove returns for the server's nonce,
	// and returns what the server sends after it.
	try := func(prove func(nonceS []byte) []byte) []byte {
		conn, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write(append([]byte(magic), nonce...))
		require.NoError(t, err)
		nonceS := make([]byte, 32)
		_, err = io.ReadFull(conn, nonceS)
		require.NoError(t, err)
		_, err = conn.Write(append(prove(nonceS), 'X')) // X is not a protocol: the server closes the connection.
		require.NoError(t, err)
		return answered(t, conn)
	}
	var right, theirs []byte
	require.Len(t, try(func(nonceS []byte) []byte {
		right, theirs = mac(secret, "client", nonce, nonceS), mac(secret, "server", nonce, nonceS)
		return right
	}), sha256.Size)
	for name, prove := range map[string]func(nonceS []byte) []byte{
		"a proof that was right before":       func([]byte) []byte { return right },
		"the server's proof of before":        func([]byte) []byte { return theirs },
		"a wrong secret":                      func(nonceS []byte) []byte { return mac("x", "client", nonce, nonceS) },
		"the wrong role":                      func(nonceS []byte) []byte { return mac(secret, "server", nonce, nonceS) },
		"the client's nonce for the server's": func([]byte) []byte { return mac(secret, "client", nonce, nonce) },
		"swapped nonces":                      func(nonceS []byte) []byte { return mac(secret, "client", nonceS, nonce) },
		"without a proof":                     func([]byte) []byte { return []byte(`P{"Op":"hello","Cluster":"remuda"}`) },
	} {
		require.Empty(t, try(prove), name)
	}
	s.apply(set("a", "1"))
}

func mac(secret, role string, nonces ...[]byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(role))
	for _, n := range nonces {
		h.Write(n)
	}
	return h.Sum(nil)
}

// TestAServerMustKnowTheSecret: a joining server sends no request to a server that cannot
// prove the secret, even if that returns the client's own proof.
func TestAServerMustKnowTheSecret(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	s := newCluster(t, secured).add()
	s.join = []string{l.Addr().String()}
	s.start()
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	hello := make([]byte, len(magic)+32)
	_, err = io.ReadFull(conn, hello)
	require.NoError(t, err)
	nonceC, nonceS := hello[len(magic):], bytes.Repeat([]byte{7}, 32)
	_, err = conn.Write(nonceS)
	require.NoError(t, err)
	proof := make([]byte, sha256.Size)
	_, err = io.ReadFull(conn, proof)
	require.NoError(t, err)
	require.Equal(t, mac(secret, "client", nonceC, nonceS), proof)
	_, err = conn.Write(proof)
	require.NoError(t, err)
	require.Empty(t, answered(t, conn))
}

// TestAnOpenPortIsOnLoopbackOnly: a server that others can reach must authenticate them.
func TestAnOpenPortIsOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	open := func(bind, secret string) error {
		store, err := state.New()
		require.NoError(t, err)
		cfg := raft.DefaultConfig()
		cfg.DataDir, cfg.Store, cfg.Bind, cfg.Secret, cfg.BootstrapExpect = t.TempDir(), store, bind, secret, 1
		cfg.Advertise = "127.0.0.1:1"
		node, err := raft.Open(cfg)
		if err == nil {
			require.NoError(t, node.Close())
		}
		return err
	}
	for _, bind := range []string{"0.0.0.0:0", ":0", "[::]:0", "10.0.0.1:0"} {
		require.ErrorContains(t, open(bind, ""), "the Raft port has no authentication, so every host that reaches it could take over the cluster: set raft.secret")
	}
	require.NoError(t, open("0.0.0.0:0", secret))
	require.NoError(t, open("127.0.0.1:0", ""))
}
