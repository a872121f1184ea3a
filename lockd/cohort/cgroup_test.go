package cohort

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newCgroup makes a cgroup, removed with the test, and returns the file that takes
// process IDs.
func newCgroup(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a cgroup needs root")
	}
	// Version 2 alone, version 2 beside version 1, version 1.
	for _, under := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/freezer"} {
		if _, err := os.Stat(filepath.Join(under, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(under, fmt.Sprintf("remuda-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		require.NoError(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 10*time.Second, time.Millisecond)
		})
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Fatal("no cgroup hierarchy is mounted under /sys/fs/cgroup")
	return ""
}

// hidden starts a process that clears its environment and loses its parent at
// once, and prints its ID: neither mark nor parent tells whose it is.
const hidden = `( env -i PATH=$PATH setsid ` + sleeper + ` & )`

// orphaned waits until pid has another parent than the shell that started it.
func orphaned(t *testing.T, pid, parent int) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, err := readStat(pid)
		return err == nil && s.parent != parent && len(cgroupsOf(pid)) > 0
	}, 10*time.Second, time.Millisecond)
}

func TestWhoIsInTheRootsOwnCgroupIsAMember(t *testing.T) {
	procs := newCgroup(t)
	join := "echo $$ > " + procs + "\n"
	mine := grow(t, []string{EnvVar + "=mine"}, 1, join+`sh -c 'echo $$; exec sleep 60 >&- 2>&-' & read go; `+hidden)
	tracker := NewTracker("mine", mine.root)
	require.ElementsMatch(t, mine.pids, alive(t, tracker))
	require.NotNil(t, tracker.own)

	// All of this comes after the last scan in the root's life.
	mine.say("go")
	orphan := mine.next(t)
	orphaned(t, orphan, mine.root.PID)
	guard := grow(t, []string{EnvVar + "=another"}, 0, join)
	require.NoError(t, mine.cmd.Process.Kill())
	_ = mine.cmd.Wait()
	ended := Now()
	tracker.RootEnded(ended)
	require.Eventually(t, func() bool { return Now() > ended }, 10*time.Second, time.Millisecond)
	next := grow(t, nil, 1, join+sleeper+" &")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, tracker.Kill(ctx))
	for _, pid := range []int{mine.pids[0], orphan} {
		_, err := Lookup(pid)
		require.ErrorIs(t, err, ErrGone, "process %d", pid)
	}
	for _, pid := range []int{guard.root.PID, next.root.PID, next.pids[0]} {
		_, err := Lookup(pid)
		require.NoError(t, err, "another cohort and the next life are not touched")
	}
}

// TestWhatAMemberStartsOutsideTheCgroupIsKilled: no list of a cgroup has it.
func TestWhatAMemberStartsOutsideTheCgroupIsKilled(t *testing.T) {
	procs, other := newCgroup(t), newCgroup(t)
	mine := grow(t, []string{EnvVar + "=mine"}, 1, "echo $$ > "+procs+"\nsh -c 'echo $$; read go; echo $$ > "+other+"; sleep 60 >&- 2>&- & echo $!; wait'")
	tracker := NewTracker("mine", mine.root)
	require.Equal(t, mine.pids, alive(t, tracker))
	require.NotNil(t, tracker.own)
	mine.say("go")
	outside := mine.next(t)
	require.NoError(t, mine.cmd.Process.Kill())
	_ = mine.cmd.Wait()
	tracker.RootEnded(Now())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, tracker.Kill(ctx))
	for _, pid := range []int{mine.pids[0], outside} {
		_, err := Lookup(pid)
		require.ErrorIs(t, err, ErrGone, "process %d", pid)
	}
}

func TestAMemberOfTheOwnCgroupIsKnownWhileTheRootLives(t *testing.T) {
	procs := newCgroup(t)
	mine := grow(t, []string{EnvVar + "=mine"}, 1, "echo $$ > "+procs+"\n"+`echo $$; read go; `+hidden)
	tracker := NewTracker("mine", mine.root)
	require.Empty(t, alive(t, tracker))
	mine.say("go")
	orphan := mine.next(t)
	orphaned(t, orphan, mine.root.PID)
	require.Equal(t, []int{orphan}, alive(t, tracker))
}

func TestASharedCgroupTellsNothing(t *testing.T) {
	procs := newCgroup(t)
	join := "echo $$ > " + procs + "\n"
	other := grow(t, nil, 1, join+sleeper+" &")
	mine := grow(t, []string{EnvVar + "=mine"}, 1, join+sleeper+" &")
	tracker := NewTracker("mine", mine.root)
	require.Equal(t, mine.pids, alive(t, tracker))
	require.Nil(t, tracker.own)

	launcher := grow(t, nil, 1, "echo $$ > "+newCgroup(t)+"\n"+`sh -c 'echo $$; read forever' <&0`)
	root, err := Lookup(launcher.pids[0])
	require.NoError(t, err)
	tracker = NewTracker("none", root)
	_ = alive(t, tracker)
	require.Nil(t, tracker.own, "its parent is there as well")
	_, err = Lookup(other.pids[0])
	require.NoError(t, err)
}

func TestParseHierarchies(t *testing.T) {
	const info = `25 30 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 /docker/abc /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
29 25 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
cut off`
	require.Equal(t, []hierarchy{
		{"", "/", "/sys/fs/cgroup/unified"},
		{"cpu,cpuacct", "/", "/sys/fs/cgroup/cpu,cpuacct"},
		{"freezer", "/docker/abc", "/sys/fs/cgroup/freezer"},
		{"name=systemd", "/", "/sys/fs/cgroup/systemd"},
	}, parseHierarchies([]byte(info), []string{"", "cpu,cpuacct", "freezer", "name=systemd", "memory"}))
}

// TestAScanReadsTheCohortAndNotTheMachine: a process that is marked and far from the root is
// found by Kill alone.
func TestAScanReadsTheCohortAndNotTheMachine(t *testing.T) {
	far := grow(t, []string{EnvVar + "=mine"}, 1, sleeper+" &")
	mine := grow(t, []string{EnvVar + "=mine"}, 1, sleeper+" &")
	tracker := NewTracker("mine", mine.root)
	require.Equal(t, mine.pids, alive(t, tracker))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, tracker.Kill(ctx))
	for _, pid := range append(far.pids, far.root.PID, mine.pids[0]) {
		_, err := Lookup(pid)
		require.ErrorIs(t, err, ErrGone)
	}
}

func TestNowIsTheClockOfStartTimes(t *testing.T) {
	before := Now()
	p := grow(t, nil, 0, "").root
	require.GreaterOrEqual(t, p.Start, before)
	require.LessOrEqual(t, p.Start, Now())
	require.NoError(t, unix.Kill(p.PID, 0))
}
