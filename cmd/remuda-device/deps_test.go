package main

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

// nomadPackages are the packages of Nomad that the plugin may link: its plugin
// SDK, and the two small ones that the SDK itself imports. At v1.6.3 all of
// them are under the MPL; from v1.7 on the SDK pulls in packages that are not.
var nomadPackages = []string{
	"github.com/hashicorp/nomad/plugins/",
	"github.com/hashicorp/nomad/helper/pluginutils/grpcutils",
	"github.com/hashicorp/nomad/helper/pointer",
}

type dependency struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	CgoFiles   []string
	Standard   bool
	Module     *struct{ Path, Version, Dir string }
}

func dependencies(t *testing.T) []dependency {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,Standard,Module", ".")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var deps []dependency
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var d dependency
		if err := dec.Decode(&d); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		deps = append(deps, d)
	}
	return deps
}

// The binary is shipped, so nothing under the Business Source License may be
// linked into it: no file of a linked package says so, and no module's licence.
func TestNothingUnderBUSLIsLinked(t *testing.T) {
	licensed, nomad := map[string]bool{}, 0
	for _, d := range dependencies(t) {
		if d.Standard || d.Module == nil {
			continue
		}
		if strings.HasPrefix(d.ImportPath, "github.com/hashicorp/nomad/") {
			nomad++
			allowed := false
			for _, p := range nomadPackages {
				allowed = allowed || d.ImportPath == p || strings.HasSuffix(p, "/") && strings.HasPrefix(d.ImportPath, p)
			}
			require.True(t, allowed, "%s is outside Nomad's plugin SDK", d.ImportPath)
			require.Equal(t, "v1.6.3", d.Module.Version, "the last release whose SDK is under the MPL alone")
		}
		if !strings.HasPrefix(d.ImportPath, "remuda/") { // this very test names the licence
			files := append(d.GoFiles, d.CgoFiles...)
			require.NotEmpty(t, files, d.ImportPath)
			for _, f := range files {
				require.False(t, isBUSL(t, filepath.Join(d.Dir, f)), "%s: %s", d.ImportPath, f)
			}
		}
		if dir := d.Module.Dir; dir != "" && d.Module.Path != "remuda" && !licensed[dir] {
			licensed[dir] = true
			for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "licen[cs]e*"} {
				files, err := filepath.Glob(filepath.Join(dir, pattern))
				require.NoError(t, err)
				for _, f := range files {
					require.False(t, isBUSL(t, f), "%s: %s", d.Module.Path, f)
				}
			}
		}
	}
	require.NotZero(t, nomad, "the test must see the SDK")
	require.Greater(t, len(licensed), 5, "the test must see the modules")
}

func isBUSL(t *testing.T, path string) bool {
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
