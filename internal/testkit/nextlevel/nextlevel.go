// Package nextlevel builds programs of the next feature level, for tests of upgrades.
//
// Such a program has one command more than this version (Annotate), and a command and a row
// of this version have one field more (SetSwitch.Note and Switch.Note). Nothing of it ships:
// the sources are replaced while they are compiled, by the flag -overlay of go build.
package nextlevel

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// Level is the feature level of the programs.
const Level = state.FeatureLevel + 1

// edits replace text of files. Each text must be in its file once.
var edits = []struct{ file, old, new string }{
	{"controller/state/feature.go", fmt.Sprintf("const FeatureLevel = %d\n", state.FeatureLevel), fmt.Sprintf("const FeatureLevel = %d\n", Level)},
	{"controller/state/types.go", "type Switch struct {\n", "type Switch struct {\n\tNote string `json:\",omitempty\"`\n"},
	{"controller/state/records.go", "type SetSwitch struct {\n", "type SetSwitch struct {\n\tNote string `json:\",omitempty\"`\n"},
	{"controller/state/records.go", "old == nil || old.Value != c.Value", "old == nil || old.Value != c.Value || old.Note != c.Note"},
	{"controller/state/records.go", "&Switch{Name: c.Name,", "&Switch{Note: c.Note, Name: c.Name,"},
	{"controller/server/convert.go", "api.Switch(*s)", "api.Switch{Name: s.Name, Value: s.Value, ModifyIndex: s.ModifyIndex}"},
}

// added are files of testdata, by their paths in the module.
var added = map[string]string{
	"controller/state/nextlevel.go":     "state.go",
	"controller/raft/nextlevel_test.go": "raft_test.go",
}

// Go runs the go command with the sources of the next feature level: "build" or "test -c"
// with their arguments. Packages are relative to the module.
func Go(t testing.TB, command string, args ...string) {
	t.Helper()
	root := moduleRoot(t)
	dir := t.TempDir()
	replaced := map[string]string{}
	for path, file := range added {
		replaced[filepath.Join(root, path)] = filepath.Join(root, "internal/testkit/nextlevel/testdata", file)
	}
	for i, e := range edits {
		path := filepath.Join(root, e.file)
		from := path
		if edited, ok := replaced[path]; ok {
			from = edited
		}
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), e.old), "%s must have %q once: adapt the edits of package nextlevel", path, e.old)
		replaced[path] = filepath.Join(dir, fmt.Sprint(i, ".go"))
		require.NoError(t, os.WriteFile(replaced[path], []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, overlay, 0o600))
	cmd := exec.Command("go", append([]string{command, "-overlay", file}, args...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", cmd, out)
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	require.NoError(t, err)
	return filepath.Dir(strings.TrimSpace(string(out)))
}
