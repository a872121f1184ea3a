package conformance_test

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCrashWithinACommitLeavesTheLayoutWholeOrGone.
func TestCrashWithinACommitLeavesTheLayoutWholeOrGone(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{args: smallGranularity()})
	random := rand.New(rand.NewPCG(1, 2))
	was := map[string]int{}
	for range 8 {
		w := open(t, s.weights(), writer)
		var all []allocation
		for range 60 {
			all = append(all, w.allocate(1+random.Int64N(9000), "x"))
		}
		w.put("key", all[7], 0, make([]byte, 100_000))
		w.post(newMessage("commit_request"))
		for end := time.Now().Add(time.Duration(random.IntN(3000)) * time.Microsecond); time.Now().Before(end); {
		}
		s.kill(t)
		a, err := w.receive(patience)
		answered := err == nil && a.kind() == "commit_response"
		s = s.again(t)
		switch state := stateOf(t, s.weights()); state.State {
		case committed:
			require.Equal(t, layoutHash(all, map[string]entry{"key": {all[7].id, 0, make([]byte, 100_000)}}), readLayout(t, s.weights()).Hash)
		case empty:
			require.False(t, answered, "a commit that was answered is gone")
		default:
			require.Fail(t, "after a restart", "%+v", state)
		}
		was[stateOf(t, s.weights()).State]++
	}
	t.Logf("after the crashes: %v", was)
	require.Equal(t, 8, was[committed]+was[empty])
	open(t, s.weights(), writer)
	s.keeps(t, 0)
}

// TestSleepersAreToldOfARestartAtOnce: with the keeper everything is lost; who asks
// with the old nonce is refused at once, who asks without waits for a writer, and both
// engines start over cleanly.
func TestSleepersAreToldOfARestartAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	primary, shadow := newClient(t), newClient(t)
	require.Equal(t, writer, primary.open("w", s.weights(), auto))
	a := primary.allocate("w", 100, "x")
	primary.mapOf("w", a)
	primary.fill(a, 3)
	require.True(t, truth(t, primary.ask("w", "commit"), "success"))
	require.Equal(t, reader, shadow.open("r", s.weights(), reader))
	shadow.mapOf("r", a)
	shadow.order(newMessage("close", "name", "r")) // sleeps: no connection is left
	nonce, layout := nonceOf(t, s.weights()), readLayout(t, s.weights())

	s.lose(t)
	s = s.again(t)
	require.Equal(t, lockState{State: empty}, stateOf(t, s.weights()))
	for _, c := range []*client{primary, shadow} {
		c.verify(a, 3) // whoever maps it has it
		c.dial("wake", s.weights())
		m := c.ask("wake", "handshake", "lock_type", reader, "timeout_ms", 24*3600_000, "expected_nonce", nonce)
		require.False(t, truth(t, m, "success"))
		require.Equal(t, "restarted", str(t, m, "code"))
		require.False(t, truth(t, m, "committed"))
		require.Empty(t, str(t, m, "memory_layout_hash"))
	}
	// A client of v0 has only its deadline.
	handshake(t, s.weights(), reader, 200).denied("timeout")
	waits := handshake(t, s.weights(), reader, forever)
	waits.silent(briefly)
	// Both engines end and start over.
	primary.kill()
	shadow.kill()
	primary, shadow = newClient(t), newClient(t)
	require.Equal(t, writer, primary.open("w", s.weights(), auto))
	primary.allocate("w", 200, "x")
	require.True(t, truth(t, primary.ask("w", "commit"), "success"))
	waits.granted(reader)
	require.Equal(t, reader, shadow.open("r", s.weights(), reader))
	// One that slept through all of that learns that it is another layout.
	m := handshake(t, s.weights(), reader, forever, "expected_nonce", nonce).denied("restarted")
	require.True(t, truth(t, m, "committed"))
	require.NotEqual(t, layout.Hash, str(t, m, "memory_layout_hash"))
}

// TestSessionsEndWithTheServer: its clients see it at once, and what was not
// committed is gone.
func TestSessionsEndWithTheServer(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	commitOne(t, s.kvCache())
	w, r := open(t, s.weights(), writer), open(t, s.kvCache(), reader)
	waits := handshake(t, s.weights(), reader, forever)
	w.allocate(1, "x")
	s.kill(t)
	for _, l := range []*link{w, r, waits} {
		l.closed()
	}
	s = s.again(t)
	require.Equal(t, lockState{State: empty}, stateOf(t, s.weights()))
	require.Equal(t, lockState{State: committed, Committed: true}, stateOf(t, s.kvCache()))
}

// TestLossOfTheKeeperIsARestart: the service ends with it. Engines that map the layout
// have their memory on, those that sleep are told.
func TestLossOfTheKeeperIsARestart(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	c := newClient(t)
	c.open("w", s.weights(), writer)
	a := c.allocate("w", granularity, "x")
	c.mapOf("w", a)
	c.fill(a, 9)
	c.ask("w", "commit")
	nonce := nonceOf(t, s.weights())
	s.lose(t)
	s = s.again(t)
	c.verify(a, 9)
	m := handshake(t, s.weights(), reader, forever, "expected_nonce", nonce).denied("restarted")
	require.False(t, truth(t, m, "committed"))
	handshake(t, s.weights(), auto, oneTry).granted(writer)
}

// TestStoppedKeeperHoldsUpCommitsAndNothingElse: what is acknowledged is kept, and
// what needs no keeper goes on.
func TestStoppedKeeperHoldsUpCommitsAndNothingElse(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{gpus: 2})
	commitOne(t, s.kvCache())
	w := open(t, s.weights(), writer)
	w.allocate(1, "x")
	resume := pause(t, s.keeper())
	w.post(newMessage("commit_request"))
	other := open(t, s.socket(1, "weights"), writer)
	other.allocate(1, "x")
	open(t, s.kvCache(), reader).alive()
	require.False(t, stateOf(t, s.weights()).Committed)
	w.silent(briefly)
	resume()
	require.True(t, truth(t, w.next(), "success"))
	w.closed()
	s.keeps(t, 2)
}

// TestWriterIsLetInOnceTheOldLayoutCannotComeBack: a keeper that is stopped still has
// it.
func TestWriterIsLetInOnceTheOldLayoutCannotComeBack(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{})
	commitOne(t, s.weights())
	before := readLayout(t, s.weights())
	resume := pause(t, s.keeper())
	w := handshake(t, s.weights(), writer, forever)
	w.silent(briefly)
	pid := s.pid()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	w.closed()
	resume()
	eventually(t, func() bool { return s.pid() != pid && s.pid() != 0 }, func() []any { return []any{"no next service"} })
	s = s.again(t)
	// The order to forget it may have been on its way.
	if state := stateOf(t, s.weights()); state.Committed {
		require.Equal(t, before, readLayout(t, s.weights()))
	} else {
		require.Equal(t, lockState{State: empty}, state)
		s.keeps(t, 0)
	}
}

// TestHungServiceIsReplaced: a service that is stopped loses nothing but its sessions.
func TestHungServiceIsReplaced(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{args: []string{"-hang-timeout", "300ms"}})
	commitOne(t, s.weights())
	before := readLayout(t, s.weights())
	r := open(t, s.weights(), reader)
	pid := s.pid()
	began := time.Now()
	pause(t, pid)
	r.closed()
	eventually(t, func() bool { return s.pid() != pid && s.pid() != 0 }, func() []any { return []any{"process %d is not replaced: %s", pid, s.log} })
	s = s.again(t)
	t.Logf("answers again %v after the stop", time.Since(began).Round(time.Millisecond))
	require.Equal(t, before, readLayout(t, s.weights()))
}

// TestBusyServiceIsNotTakenForHung: many connections at once, with little patience.
func TestBusyServiceIsNotTakenForHung(t *testing.T) {
	t.Parallel()
	s := start(t, serverConfig{args: []string{"-hang-timeout", "2s"}})
	pid := s.pid()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		var all []*link
		for range 200 {
			all = append(all, dial(t, s.weights()).post(newMessage("get_runtime_state_request")))
		}
		for _, l := range all {
			l.next()
			l.close()
		}
	}
	require.Equal(t, pid, s.pid())
}

// TestLogThatNobodyReadsEndsNothing: the program that read the log has ended.
func TestLogThatNobodyReadsEndsNothing(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := command("", append([]string{"gms", "-socket-dir", dir}, backendArgs(0, 1)...)...)
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	s := &server{cfg: serverConfig{dir: dir, gpus: 1}, cmd: cmd, log: &logBuffer{}, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(s.done) }()
	t.Cleanup(func() { s.finish(t) })
	s.ready(t)
	require.NoError(t, read.Close())
	for range 3 {
		commitOne(t, s.weights())
		before := readLayout(t, s.weights())
		s = s.crash(t)
		require.Equal(t, before, readLayout(t, s.weights()))
	}
	require.False(t, s.gone())
}
