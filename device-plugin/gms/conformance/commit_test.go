package conformance_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCommitIsAnsweredAndEndsTheSession(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	w.allocate(1, "x")
	w.commit()
	s, n, hash := runtimeState(t, g.weights)
	require.Equal(t, lockState{State: committed, Committed: true}, s)
	require.EqualValues(t, 1, n)
	require.Len(t, hash, 64)
}

func TestEmptyCommitIsLegal(t *testing.T) {
	g := freshGPU(t)
	open(t, g.weights, writer).commit()
	nothing := sha256.Sum256(nil)
	r := open(t, g.weights, reader)
	require.Equal(t, hex.EncodeToString(nothing[:]), r.layoutHash())
	require.Empty(t, r.allocations())
	require.Empty(t, r.keys(""))
	_, n, hash := runtimeState(t, g.weights)
	require.Zero(t, n)
	require.Equal(t, r.layoutHash(), hash)
}

// TestCommitSurvivesALostAnswer: the client is gone, or deaf, when the answer comes.
func TestCommitSurvivesALostAnswer(t *testing.T) {
	leave := map[string]func(t *testing.T, l *link){
		"closed": func(_ *testing.T, l *link) { l.close() },
		"deaf": func(t *testing.T, l *link) {
			require.NoError(t, l.c.CloseRead())
			l.post(newMessage("commit_request"))
		},
		"half closed": func(t *testing.T, l *link) { require.NoError(t, l.c.CloseWrite()) },
	}
	for name, left := range leave {
		t.Run(name, func(t *testing.T) {
			g := freshGPU(t)
			for range 40 {
				w := open(t, g.weights, writer)
				a := w.allocate(77, "x")
				if name != "deaf" {
					w.post(newMessage("commit_request"))
				}
				left(t, w)
				becomes(t, g.weights, lockState{State: committed, Committed: true})
				r := open(t, g.weights, reader)
				require.Equal(t, []allocation{a}, r.allocations())
				r.close()
				if name == "half closed" {
					require.True(t, truth(t, w.next(), "success"), "who only sends no more still gets the answer")
				}
			}
		})
	}
}

// TestCommitOfAClientThatIsGoneHolds: the server stands still until the client has
// sent its commit and is gone.
func TestCommitOfAClientThatIsGoneHolds(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	for range 10 {
		w := open(t, s.weights(), writer)
		a := w.allocate(1, "x")
		resume := pause(t, s.pid())
		w.post(newMessage("commit_request")).close()
		resume()
		becomes(t, s.weights(), lockState{State: committed, Committed: true})
		r := open(t, s.weights(), reader)
		require.Equal(t, []allocation{a}, r.allocations())
		r.close()
	}
}

// TestCommitWhoseAnswerFindsAFullSocketHolds: the client asked for much before and
// read none of it.
func TestCommitWhoseAnswerFindsAFullSocketHolds(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	w.put("key", a, 0, make([]byte, 300_000))
	for range 3 {
		w.post(newMessage("metadata_get_request", "key", "key"))
	}
	w.post(newMessage("commit_request"))
	// Read it all late: nothing is lost, and the session ends after the commit.
	for range 3 {
		require.Len(t, blob(t, w.next(), "value"), 300_000)
	}
	require.Equal(t, "commit_response", w.next().kind())
	w.closed()
	require.Equal(t, committed, stateOf(t, g.weights).State)
}

// TestNothingAfterACommitCounts: the commit is the session's last request.
func TestNothingAfterACommitCounts(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	a := w.allocate(1, "x")
	batch := frame(encode(newMessage("commit_request")))
	batch = append(batch, frame(encode(newMessage("allocate_request", "size", 5)))...)
	batch = append(batch, frame(encode(newMessage("free_allocation_request", "allocation_id", a.id)))...)
	require.NoError(t, w.write(batch))
	require.Equal(t, "commit_response", w.next().kind())
	w.closed()
	r := open(t, g.weights, reader)
	require.Equal(t, []allocation{a}, r.allocations())
}

// TestConnectionIsTheSession: nothing but closing it ends the session, and every
// copy of the descriptor counts.
func TestConnectionIsTheSession(t *testing.T) {
	g := freshGPU(t)
	w := open(t, g.weights, writer)
	f, err := w.c.File() // a second descriptor of the same socket, as a child inherits it
	require.NoError(t, err)
	w.close()
	handshake(t, g.weights, writer, 50).denied("timeout")
	require.NoError(t, unix.Shutdown(int(f.Fd()), unix.SHUT_WR))
	f.Close()
	becomes(t, g.weights, lockState{State: empty})
}
