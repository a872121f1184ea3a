package gateway_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchCPU is the processors' time of the three parties: of a measurement in seconds, and
// once finish was called as cores in use, with microseconds per request. The target has
// none where the client talks to the engine itself.
type benchCPU struct {
	Client           float64 `json:"client_cores"`
	Target           float64 `json:"target_cores"`
	Engine           float64 `json:"engine_cores"`
	ClientPerRequest float64 `json:"client_us_per_request"`
	TargetPerRequest float64 `json:"target_us_per_request"`
	EnginePerRequest float64 `json:"engine_us_per_request"`
}

func (c *benchCPU) add(o benchCPU) {
	c.Client += o.Client
	c.Target += o.Target
	c.Engine += o.Engine
}

func (c *benchCPU) finish(took time.Duration, requests int) {
	for _, f := range []struct{ share, each *float64 }{
		{&c.Client, &c.ClientPerRequest}, {&c.Target, &c.TargetPerRequest}, {&c.Engine, &c.EnginePerRequest},
	} {
		*f.each = *f.share * 1e6 / float64(requests)
		*f.share /= took.Seconds()
	}
}

// cpuSince returns what was used since the readings before.
func cpuSince(b *testing.B, t *benchTarget, before benchCPU) benchCPU {
	b.Helper()
	now := cpuNow(b, t)
	return benchCPU{Client: now.Client - before.Client, Target: now.Target - before.Target, Engine: now.Engine - before.Engine}
}

// cpuNow reads what each party has used since it was started, in seconds. Servers within
// this process count for the client.
func cpuNow(b *testing.B, t *benchTarget) benchCPU {
	b.Helper()
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		b.Fatal(err)
	}
	out := benchCPU{Client: time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()}
	for _, p := range []struct {
		pids []int
		sum  *float64
	}{{t.pids, &out.Target}, {t.engine, &out.Engine}} {
		for _, parent := range p.pids {
			for _, pid := range familyOf(parent) { // nginx listens before it has its workers
				seconds, err := cpuOf(pid)
				if err != nil {
					b.Fatalf("processors' time of %s: %v", t.name, err)
				}
				*p.sum += seconds
			}
		}
	}
	return out
}

// cpuOf is utime plus stime of a process with all its threads, in seconds. The kernel
// counts in ticks of 10 ms (proc(5); USER_HZ is 100 on every architecture of Go).
func cpuOf(pid int) (float64, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseUint(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseUint(fields[12], 10, 64)
	return float64(user+system) / 100, err
}

// statOf returns the fields of /proc/PID/stat that follow the program's name: the state
// first, the parent second.
func statOf(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("/proc/%d/stat is %q: want 15 fields and more", pid, raw)
	}
	return fields, nil
}

// familyOf returns a process and its children.
func familyOf(pid int) []int {
	family := []int{pid}
	stats, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range stats {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if fields, err := statOf(child); err == nil && fields[1] == strconv.Itoa(pid) {
			family = append(family, child)
		}
	}
	return family
}
