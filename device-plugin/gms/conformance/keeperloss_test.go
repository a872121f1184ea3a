package conformance_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/loopback"
)

// TestCommitHoldsWithoutTheKeeperAndIsKeptWhenItIsBack.
func TestCommitHoldsWithoutTheKeeperAndIsKeptWhenItIsBack(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{})
	k.kill()
	began := time.Now()
	commitOne(t, s.weights())
	t.Logf("a commit without the keeper took %v", time.Since(began).Round(time.Millisecond))
	before := readLayout(t, s.weights())
	k = startKeeper(t, k.socket)
	k.holds(t, len(before.All))
	s = s.crash(t)
	require.Equal(t, before, readLayout(t, s.weights()))
}

// TestKeeperThatComesBackEmptyIsGivenEverythingAgain.
func TestKeeperThatComesBackEmptyIsGivenEverythingAgain(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{gpus: 2})
	open(t, s.weights(), writer).commit()
	commitOne(t, s.kvCache())
	commitOne(t, s.socket(1, "weights"))
	before := readLayout(t, s.socket(1, "weights"))
	for range 2 {
		k.kill()
		address := loopback.Free(t)
		k = startKeeper(t, k.socket, "-metrics", address)
		k.holds(t, 2)
		// The empty layout has no descriptors to be counted by.
		eventually(t, func() bool { return gauge(t, address, "remuda_gms_keeper_records") == 3 },
			func() []any { return []any{"%v records", gauge(t, address, "remuda_gms_keeper_records")} })
	}
	s = s.crash(t)
	require.Equal(t, before, readLayout(t, s.socket(1, "weights")))
	require.Equal(t, lockState{State: committed, Committed: true}, stateOf(t, s.weights()))
}

// TestCrashWithinACommitLeavesTheLayoutWholeOrGone.
func TestCrashWithinACommitLeavesTheLayoutWholeOrGone(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{args: smallGranularity()})
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
	k.holds(t, 0)
}

// TestSleepersAreToldOfARestartAtOnce: without a keeper everything is lost; who asks
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

	s = s.crash(t)
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
	s, _ := kept(t, serverConfig{})
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

// TestLossOfTheKeeperAndThenOfTheServerIsARestart: engines that map the layout lose
// nothing, those that sleep are told.
func TestLossOfTheKeeperAndThenOfTheServerIsARestart(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{})
	c := newClient(t)
	c.open("w", s.weights(), writer)
	a := c.allocate("w", granularity, "x")
	c.mapOf("w", a)
	c.fill(a, 9)
	c.ask("w", "commit")
	nonce := nonceOf(t, s.weights())
	k.kill()
	c.verify(a, 9)
	require.Equal(t, lockState{State: committed, Committed: true}, stateOf(t, s.weights()), "the server needs no keeper")
	s.kill(t)
	startKeeper(t, k.socket)
	s = s.again(t)
	c.verify(a, 9)
	m := handshake(t, s.weights(), reader, forever, "expected_nonce", nonce).denied("restarted")
	require.False(t, truth(t, m, "committed"))
	handshake(t, s.weights(), auto, oneTry).granted(writer)
}

// TestKeeperThatHangsHoldsUpNoOtherGPUAndNoCommitForEver.
func TestKeeperThatHangsHoldsUpNoOtherGPUAndNoCommitForEver(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{gpus: 2})
	resume := func() {}
	// A commit waits for the keeper for two seconds. On a slow machine the others may be
	// done only after that, but not each time.
	tries, first := 5, false
	for ; tries > 0 && !first; tries-- {
		w := open(t, s.weights(), writer)
		w.allocate(1, "x")
		resume = pause(t, k.cmd.Process.Pid)
		began := time.Now()
		w.post(newMessage("commit_request"))
		other := open(t, s.socket(1, "weights"), writer)
		other.allocate(1, "x")
		stateOf(t, s.weights())
		open(t, s.kvCache(), writer).close()
		other.close()
		_, err := w.receive(time.Millisecond)
		if first = timedOut(err); first {
			require.True(t, truth(t, w.next(), "success"))
			t.Logf("a commit with a keeper that hangs took %v", time.Since(began).Round(time.Millisecond))
			w.closed()
			break
		}
		require.NoError(t, err)
		resume()
		k.holds(t, 1)
	}
	require.True(t, first, "everyone waits for the keeper")
	require.Equal(t, lockState{State: committed, Committed: true}, stateOf(t, s.weights()))
	resume()
	k.holds(t, 1)
	s = s.crash(t)
	require.Equal(t, lockState{State: committed, Committed: true}, stateOf(t, s.weights()))
}

// TestWriterThatIsInHasDroppedWhatWasKeptEvenIfTheKeeperHung: a layout that a writer
// was told to have cleared does not come back, whatever the keeper did meanwhile.
func TestWriterThatIsInHasDroppedWhatWasKeptEvenIfTheKeeperHung(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{})
	commitOne(t, s.weights())
	resume := pause(t, k.cmd.Process.Pid)
	w := handshake(t, s.weights(), writer, forever)
	a, err := w.receive(4 * time.Second)
	granted := err == nil && a.message["success"] == true
	s.kill(t)
	resume()
	s = s.again(t)
	t.Logf("granted while the keeper hung: %v; then %+v", granted, stateOf(t, s.weights()))
	if granted {
		require.Equal(t, lockState{State: empty}, stateOf(t, s.weights()))
	} else {
		open(t, s.weights(), reader)
	}
}

// TestRestartWhileTheKeeperHangsLosesNothing: what it has is not given up because it
// is slow.
func TestRestartWhileTheKeeperHangsLosesNothing(t *testing.T) {
	t.Parallel()
	s, k := kept(t, serverConfig{})
	commitOne(t, s.weights())
	before := readLayout(t, s.weights())
	resume := pause(t, k.cmd.Process.Pid)
	s.kill(t)
	again, err := launch(s.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { again.finish(t) })
	// It may wait for the keeper, or end, but it may not serve what is not so.
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline) && !again.gone(); time.Sleep(10 * time.Millisecond) {
		r, err := dialRaw(s.weights())
		if err != nil {
			continue
		}
		_ = r.send(newMessage("get_runtime_state_request"))
		a, err := r.receive(100 * time.Millisecond)
		r.c.Close()
		require.False(t, err == nil && a.message["committed"] == false, "a layout that is kept is given up: %v", a.message)
	}
	resume()
	if again.gone() {
		again = s.again(t)
	}
	again.ready(t)
	require.Equal(t, before, readLayout(t, s.weights()))
}

// TestKeeperIsPrivate: as the server's sockets are.
func TestKeeperIsPrivate(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, filepath.Join(socketDir(t), "keeper"))
	require.EqualValues(t, 0o600, modeOf(t, k.socket))
}
