package raft_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
)

// exchange sends data to a Raft port and returns all that comes back until the server
// closes the connection or sends a line.
func exchange(t *testing.T, address, data string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, data)
	require.NoError(t, err)
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return line
}

func TestAWrongClusterNameDoesNotRevealTheRightOne(t *testing.T) {
	t.Parallel()
	c := start(t, 1, func(cfg *raft.Config) { cfg.Cluster = "west" })
	reply := exchange(t, c.servers[0].address, `P{"Op":"hello","Cluster":"guess"}`+"\n")
	require.Contains(t, reply, "guess")
	require.NotContains(t, reply, "west")
}

// TestLeaveOfNoMemberChangesNothing: no entry is added to the log.
func TestLeaveOfNoMemberChangesNothing(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil)
	s := c.servers[0]
	before := s.node.LastIndex()
	require.Contains(t, exchange(t, s.address, `P{"Op":"leave","Cluster":"remuda"}`+"\n"), "missing the ID")
	require.Contains(t, exchange(t, s.address, `P{"Op":"leave","Cluster":"remuda","Peer":{"ID":"x"}}`+"\n"), `"Error":""`)
	require.Equal(t, before, s.node.LastIndex())
}

// TestIdleConnectionsDoNotBlockThePort: connections that send nothing do not keep out a
// server, though they come from its address.
func TestIdleConnectionsDoNotBlockThePort(t *testing.T) {
	t.Parallel()
	c := start(t, 1, company)
	first := c.servers[0]
	first.apply(set("a", "1"))
	// A loaded machine may be slow by itself for a while. Each try has idle connections of its own, as
	// the handshakes of earlier ones may have timed out.
	const within = 4 * time.Second
	took := within
	for try := 0; took >= within && try < 3; try++ {
		for range 300 {
			conn, err := net.Dial("tcp", first.address)
			require.NoError(t, err)
			defer conn.Close()
		}
		begun := time.Now()
		require.Contains(t, exchange(t, first.address, `P{"Op":"hello","Cluster":"remuda"}`+"\n"), "ClusterID")
		took = time.Since(begun)
	}
	require.Less(t, took, within, "the answer waited until the handshakes of the idle connections had timed out")
	s := c.add()
	s.join = []string{first.address}
	s.start()
	s.sees("a", "1")
}

// TestAJoiningServerDoesNotCountForTheMajority until it is promoted.
func TestAJoiningServerDoesNotCountForTheMajority(t *testing.T) {
	t.Parallel()
	c := start(t, 1, company)
	first := c.servers[0]
	first.apply(set("a", "1"))
	s := c.add()
	s.join = []string{first.address}
	s.start()
	s.sees("a", "1")
	s.stop()
	_, err := first.node.Apply(timeout(t, 10*time.Second), set("a", "2"))
	require.NoError(t, err)
}
