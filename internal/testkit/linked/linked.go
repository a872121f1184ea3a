// Package linked is for tests: it looks at what a binary of this module links.
package linked

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Package is one that is linked and is not the standard library's.
type Package struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	CgoFiles   []string
	Standard   bool
	Module     *struct{ Path, Version, Dir string }
}

// Packages are those of the main package in the test's directory.
func Packages(t testing.TB) []Package {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,Standard,Module", ".")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []Package
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p Package
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		if !p.Standard && p.Module != nil {
			all = append(all, p)
		}
	}
	return all
}

// RequireNoBUSL requires that none of the packages is under the Business Source License, as
// binaries are shipped: no file of a linked package says so, and no module's licence.
func RequireNoBUSL(t testing.TB, packages []Package) {
	t.Helper()
	licensed := map[string]bool{}
	for _, p := range packages {
		if p.Module.Path == "remuda" { // this very package names the licence
			continue
		}
		files := append(p.GoFiles, p.CgoFiles...)
		require.NotEmpty(t, files, p.ImportPath)
		for _, f := range files {
			require.False(t, isBUSL(t, filepath.Join(p.Dir, f)), "%s: %s", p.ImportPath, f)
		}
		dir := p.Module.Dir
		if dir == "" || licensed[dir] {
			continue
		}
		licensed[dir] = true
		for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "licen[cs]e*"} {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			require.NoError(t, err)
			for _, f := range files {
				require.False(t, isBUSL(t, f), "%s: %s", p.Module.Path, f)
			}
		}
	}
	require.Greater(t, len(licensed), 5, "the test must see the modules")
}

func isBUSL(t testing.TB, path string) bool {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	if info.IsDir() {
		return false
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text = text[:min(len(text), 64<<10)]
	return strings.Contains(string(text), "BUSL-1.1") || strings.Contains(string(text), "Business Source License")
}
