package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Users of nobody in particular.
const (
	someone = 65533
	another = 65532
)

// publicDir is a directory that everyone may look into.
func publicDir(t testing.TB) string {
	t.Helper()
	dir := socketDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// copyOf is a copy of a program that everyone may run. Another process writes it: a
// child that is forked here meanwhile would keep the file open, and then it cannot be
// run.
func copyOf(t testing.TB, program string) string {
	t.Helper()
	to := filepath.Join(publicDir(t), "program")
	out, err := exec.Command("cp", program, to).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Chmod(to, 0o755))
	return to
}

// clientOf starts a client process of another user.
func clientOf(t testing.TB, uid uint32) *client {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	program := copyOf(t, self)
	return newClient(t, func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args[0], cmd.Dir = program, program, "/"
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	})
}

// turnedAway says that a connection gets nothing from the server: for each first
// message, the end or a refusal.
func turnedAway(t testing.TB, c *client, path string) {
	t.Helper()
	for _, m := range []message{
		newMessage("handshake_request", "lock_type", auto, "timeout_ms", 0),
		newMessage("get_runtime_state_request"),
		newMessage("get_event_history_request"),
	} {
		if _, err := c.try(newMessage("dial", "name", "x", "path", path)); err != nil {
			require.Regexp(t, "broken pipe|connection reset|EOF", err.Error())
			continue // closed before the tag was asked for
		}
		if _, err := c.try(newMessage("send", "name", "x", "bytes", frame(encode(m)))); err != nil {
			continue // closed already
		}
		report, err := c.try(newMessage("receive", "name", "x", "ms", patience.Milliseconds()))
		if err != nil {
			require.NotContains(t, err.Error(), "timeout")
			continue
		}
		got, err := decode(report["body"].([]byte))
		require.NoError(t, err)
		if got.kind() != "error_response" {
			require.Equal(t, "handshake_response", got.kind(), "another user is answered: %v", got)
			require.False(t, truth(t, got, "success"), "another user is let in: %v", got)
		}
	}
}

// TestOtherUsersAreRefused: by the socket's mode, and where that was relaxed by who
// they are.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	t.Parallel()
	s := start(t, serverConfig{dir: publicDir(t)})
	stranger := clientOf(t, someone)
	_, err := stranger.try(newMessage("dial", "name", "x", "path", s.weights()))
	require.ErrorContains(t, err, "permission denied", "the mode keeps others out")

	require.NoError(t, os.Chmod(socketFile(s.weights()), 0o666))
	events := history(t, s.weights())
	for range 3 {
		turnedAway(t, stranger, s.weights())
	}
	require.Equal(t, lockState{State: empty}, stateOf(t, s.weights()))
	require.Equal(t, events, history(t, s.weights()))
	require.Contains(t, s.log.String(), "65533", "the log says who it was")
	// The same process as the server's user is let in: it is the user that counts.
	require.Equal(t, writer, newClient(t).open("w", s.weights(), writer))
}

// TestServersOwnUserAndRootMayConnect: and no third.
func TestServersOwnUserAndRootMayConnect(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	t.Parallel()
	dir := publicDir(t)
	require.NoError(t, os.Chown(dir, someone, someone))
	s := start(t, serverConfig{dir: dir, binary: copyOf(t, remuda), cred: &syscall.Credential{Uid: someone, Gid: someone}})
	own := clientOf(t, someone)
	require.Equal(t, writer, own.open("w", s.weights(), writer))
	a := own.allocate("w", 5, "x")
	own.mapOf("w", a)
	own.fill(a, 1)
	require.True(t, truth(t, own.ask("w", "commit"), "success"))

	root := newClient(t)
	require.Equal(t, reader, root.open("r", s.weights(), auto))
	root.mapOf("r", a)
	root.verify(a, 1)

	require.NoError(t, os.Chmod(socketFile(s.weights()), 0o666))
	turnedAway(t, clientOf(t, another), s.weights())
	becomes(t, s.weights(), lockState{State: inReading, Readers: 1, Committed: true})
}
