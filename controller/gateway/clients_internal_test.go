package gateway

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/internal/certificate"
)

// TestOpenPortsAreLogged at each start, in one line each.
func TestOpenPortsAreLogged(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, c := range []struct {
		clients, operators string
		tls                bool
		lines              []string
	}{
		{"127.0.0.1", "::1", false, nil},
		{"10.0.0.1", "127.0.0.1", true, nil},
		{"0.0.0.0", "127.0.0.1", false, []string{"the clients' port is open to the network without TLS"}},
		{"::", "10.0.0.1", false, []string{"the clients' port is open to the network without TLS", "the operators' port is open to the network"}},
	} {
		var out bytes.Buffer
		g := &Gateway{log: hclog.New(&hclog.LoggerOptions{Output: &out})}
		if c.tls {
			g.certificates = &certificate.Pair{}
		}
		g.warnOpen(at(c.clients), at(c.operators))
		require.Equal(t, len(c.lines), bytes.Count(out.Bytes(), []byte("\n")), out.String())
		for _, line := range c.lines {
			require.Contains(t, out.String(), line)
		}
	}
}

// TestDeadlineOfOthers: a write deadline that TLS sets before its last message is not put off.
func TestDeadlineOfOthers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer peer.Close()
	accepted, err := l.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	c := &clientConn{TCPConn: accepted.(*net.TCPConn), timeout: time.Hour}
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil { // the peer reads nothing
		_, err = c.Write(make([]byte, 1<<20))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// TestGuessersAreBounded, and none of their guesses is missing in the log.
func TestGuessersAreBounded(t *testing.T) {
	var out bytes.Buffer
	g := newGuesses()
	for i := range 3 * maxGuessers {
		require.Zero(t, g.wrong(strconv.Itoa(i), time.Unix(0, 0)))
	}
	require.Len(t, g.byAddress, maxGuessers)
	require.Equal(t, maxGuessers, g.recent.Len())
	g.report(hclog.New(&hclog.LoggerOptions{Output: &out}))
	require.Equal(t, maxGuessLines+1, bytes.Count(out.Bytes(), []byte("\n")))
	require.Contains(t, out.String(), "more clients: requests="+strconv.Itoa(3*maxGuessers-maxGuessLines))
	out.Reset()
	g.report(hclog.New(&hclog.LoggerOptions{Output: &out}))
	require.Empty(t, out.String())
}
