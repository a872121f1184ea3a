// Package fakenvml is for tests: it compiles a small stand-in for NVIDIA's
// management library (testdata/fakenvml.c, which says what it can be told to do) and
// steers it through the file beside it.
package fakenvml

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

//go:embed testdata/fakenvml.c
var source string

// Library is a compiled stand-in. It is safe for concurrent use.
type Library struct {
	t testing.TB
	// Path is the library's path.
	Path string

	mu     sync.Mutex
	state  map[string]string
	events int
}

// built are the libraries that were compiled already, by what they leave out.
var built sync.Map

// Build compiles the library, without the functions that omit names, into a
// directory of its own. It skips the test where there is no C compiler.
func Build(t testing.TB, omit ...string) *Library {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is needed to compile the fake NVML")
	}
	l := &Library{t: t, Path: filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), state: map[string]string{}}
	key := strings.Join(omit, " ")
	if image, ok := built.Load(key); ok {
		if err := os.WriteFile(l.Path, image.([]byte), 0o755); err != nil {
			t.Fatal(err)
		}
		return l
	}
	c := filepath.Join(t.TempDir(), "fakenvml.c")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-o", l.Path}
	for _, name := range omit {
		// Under another name nobody finds it.
		args = append(args, fmt.Sprintf("-D%s=left_out_%s", name, name))
	}
	if out, err := exec.Command(cc, append(args, c)...).CombinedOutput(); err != nil {
		t.Fatalf("compile the fake NVML: %v\n%s", err, out)
	}
	image, err := os.ReadFile(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	built.Store(key, image)
	return l
}

// Set changes what the library is told, a pair "key=value" each; "key=" alone
// takes the key out.
func (l *Library) Set(pairs ...string) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range pairs {
		key, value, _ := strings.Cut(p, "=")
		if value == "" {
			delete(l.state, key)
		} else {
			l.state[key] = value
		}
	}
	l.write()
}

// XID makes the driver report an XID for GPU number gpu, or where instance is
// given (the numbers of the GPU instance and the compute instance) for that.
func (l *Library) XID(gpu, xid int, instance ...int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events++
	l.state["xid"] = fmt.Sprintf("%d %d %d", l.events, gpu, xid)
	for _, n := range instance {
		l.state["xid"] += fmt.Sprintf(" %d", n)
	}
	l.write()
}

func (l *Library) write() {
	l.t.Helper()
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(l.state)) {
		fmt.Fprintf(&b, "%s=%s\n", key, l.state[key])
	}
	// Renamed into place, so that the library never reads half of it.
	if err := os.WriteFile(l.Path+".state.new", []byte(b.String()), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(l.Path+".state.new", l.Path+".state"); err != nil {
		l.t.Fatal(err)
	}
}

// Hide takes the library away, as a driver that is uninstalled does, and Show
// brings it back.
func (l *Library) Hide() { l.move(l.Path, l.Path+".away") }

// Show undoes Hide.
func (l *Library) Show() { l.move(l.Path+".away", l.Path) }

func (l *Library) move(from, to string) {
	l.t.Helper()
	if err := os.Rename(from, to); err != nil {
		l.t.Fatal(err)
	}
}

// UUID is the UUID of GPU number gpu unless the state says otherwise.
func UUID(gpu int) string { return fmt.Sprintf("GPU-00000000-0000-4000-9000-%012x", gpu) }

// MIGUUID is the UUID of an instance.
func MIGUUID(gpu, instance int) string {
	return fmt.Sprintf("MIG-00000000-0000-4000-a%03x-%012x", instance, gpu)
}
