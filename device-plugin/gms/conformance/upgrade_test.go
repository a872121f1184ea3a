package conformance_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programOf is the file that a process executes: its device and inode.
func programOf(t testing.TB, pid int) (dev, ino uint64) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st); err != nil {
		return 0, 0 // it is being replaced
	}
	return st.Dev, st.Ino
}

// replaceProgram puts another file in the place of a program, as a package manager does.
func replaceProgram(t testing.TB, program string, content func(to string)) {
	t.Helper()
	fresh := program + ".new"
	content(fresh)
	require.NoError(t, os.Chmod(fresh, 0o755))
	require.NoError(t, os.Rename(fresh, program))
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	out, err := exec.Command("cp", from, to).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// upgraded waits until both processes execute what is at the program's path.
func (s *server) upgraded(t testing.TB, program string) {
	t.Helper()
	var want syscall.Stat_t
	require.NoError(t, syscall.Stat(program, &want))
	eventually(t, func() bool {
		for _, pid := range []int{s.keeper(), s.pid()} {
			if dev, ino := programOf(t, pid); dev != want.Dev || ino != want.Ino {
				return false
			}
		}
		return true
	}, func() []any { return []any{"the old program runs:\n%s", s.log} })
	s.ready(t)
}

// TestUpgradeUnderLoad: SIGHUP replaces the keeper and the service by the program that
// is there now, while engines have the memory mapped and others come and go. Nothing
// that is committed is lost, and no process but the service ends.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	program := copyOf(t, remuda)
	s := start(t, serverConfig{binary: program, gpus: 2})
	awake, sleeper := newClient(t), newClient(t)
	require.Equal(t, writer, awake.open("w", s.weights(), writer))
	var all []allocation
	for i := range 3 {
		a := awake.allocate("w", granularity, fmt.Sprint(i))
		awake.mapOf("w", a)
		awake.fill(a, int64(i))
		all = append(all, a)
	}
	awake.commit("w")
	before := readLayout(t, s.weights())

	// Clients that commit all the time: a commit that is acknowledged is there afterwards,
	// until the next writer clears it.
	stop := make(chan struct{})
	var load sync.WaitGroup
	committed, lost := 0, ""
	load.Go(func() {
		path := s.socket(1, "weights")
		for last := ""; ; {
			select {
			case <-stop:
				return
			default:
			}
			c, err := dialRaw(path)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			ask := func(m message) message {
				if err != nil {
					return nil
				}
				var a answer
				if err = c.send(m); err == nil {
					a, err = c.receive(patience)
					a.close()
				}
				return a.message
			}
			if last != "" {
				m := ask(newMessage("get_runtime_state_request"))
				if err == nil && m["memory_layout_hash"] != last {
					lost = fmt.Sprint(m)
				}
				last = ""
				c.c.Close()
				continue
			}
			ask(newMessage("handshake_request", "lock_type", writer, "timeout_ms", nil))
			ask(newMessage("allocate_request", "size", committed+1))
			if m := ask(newMessage("commit_request")); err == nil && m["success"] == true {
				committed++
				if m := state(path); m != nil {
					last, _ = m["memory_layout_hash"].(string)
				}
			}
			c.c.Close()
		}
	})
	for range 3 {
		replaceProgram(t, program, func(to string) { copyFile(t, remuda, to) })
		began := time.Now()
		require.NoError(t, syscall.Kill(s.keeper(), syscall.SIGHUP))
		s.upgraded(t, program)
		t.Logf("upgraded after %v", time.Since(began).Round(time.Millisecond))
		require.Equal(t, before, readLayout(t, s.weights()))
		for i, a := range all {
			awake.verify(a, int64(i))
		}
		s = s.crash(t) // the new keeper has the records
		require.Equal(t, before, readLayout(t, s.weights()))
	}
	close(stop)
	load.Wait()
	require.Empty(t, lost, "a commit that was acknowledged is gone")
	require.Positive(t, committed)
	t.Logf("%d commits meanwhile", committed)
	require.Equal(t, reader, sleeper.open("r", s.weights(), reader))
	for i, a := range all {
		sleeper.mapOf("r", a)
		sleeper.verify(a, int64(i))
	}
}

// state asks for the runtime state; nil while there is no service.
func state(path string) message {
	c, err := dialRaw(path)
	if err != nil {
		return nil
	}
	defer c.c.Close()
	if c.send(newMessage("get_runtime_state_request")) != nil {
		return nil
	}
	a, err := c.receive(patience)
	a.close()
	if err != nil {
		return nil
	}
	return a.message
}

// TestProgramThatCannotServeIsNotTakenOver: the old one goes on, with all it has.
func TestProgramThatCannotServeIsNotTakenOver(t *testing.T) {
	t.Parallel()
	program := copyOf(t, remuda)
	s := start(t, serverConfig{binary: program})
	commitOne(t, s.weights())
	before := readLayout(t, s.weights())
	dev, ino := programOf(t, s.keeper())
	for name, content := range map[string]string{
		"it fails":         "#!/bin/sh\nexit 1\n",
		"it is no program": "\x00",
	} {
		replaceProgram(t, program, func(to string) { require.NoError(t, os.WriteFile(to, []byte(content), 0o755)) })
		pid, said := s.pid(), strings.Count(s.log.String(), "goes on")+strings.Count(s.log.String(), "cannot start")
		require.NoError(t, syscall.Kill(s.keeper(), syscall.SIGHUP))
		eventually(t, func() bool {
			return s.pid() != pid && s.pid() != 0 && strings.Count(s.log.String(), "goes on")+strings.Count(s.log.String(), "cannot start") > said
		}, func() []any { return []any{"%s: %s", name, s.log} })
		eventually(t, func() bool { d, i := programOf(t, s.pid()); return d == dev && i == ino }, func() []any { return []any{"%s: another program serves", name} })
		s.ready(t)
		require.Equal(t, before, readLayout(t, s.weights()), name)
	}
	require.NoError(t, os.Remove(program))
	s = s.crash(t) // what runs needs its file no more
	require.Equal(t, before, readLayout(t, s.weights()))
	// And a good one is taken afterwards.
	copyFile(t, remuda, filepath.Join(filepath.Dir(program), "good"))
	require.NoError(t, os.Chmod(filepath.Join(filepath.Dir(program), "good"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(filepath.Dir(program), "good"), program))
	require.NoError(t, syscall.Kill(s.keeper(), syscall.SIGHUP))
	s.upgraded(t, program)
	require.Equal(t, before, readLayout(t, s.weights()))
}
