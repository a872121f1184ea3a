package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	goversion "github.com/hashicorp/go-version"
)

// tool is a program that remuda does not ship.
type tool struct {
	name string
	// minimum is the oldest version that works, with the reason.
	minimum string
	why     string
	// target is what builds it.
	target  string
	path    string
	version string
}

var (
	nomadTool = tool{name: "nomad", minimum: "1.11.1", target: "make tools",
		why: "older schedulers can offer a task no device IDs at all (nomad#27177)"}
	consulTool = tool{name: "consul", minimum: "1.15.0", target: "make tools",
		why: "the oldest that the pinned client library was tried with"}
	autoscalerTool = tool{name: "nomad-autoscaler", minimum: "0.5.0", target: "make tools",
		why: "0.4.7 panics on every policy that comes from a file"}
	ollamaTool = tool{name: "ollama", minimum: "0.9.0", target: "make ollama",
		why: "older ones lack the create API with file digests"}
)

var versionPattern = regexp.MustCompile(`v?(\d+\.\d+\.\d+)`)

// find looks for the tool on PATH and then in toolDirs. It takes the first one
// that is new enough.
func (t tool) find(ctx context.Context, toolDirs []string) (tool, error) {
	var seen []string
	candidates := []string{}
	if p, err := exec.LookPath(t.name); err == nil {
		candidates = append(candidates, p)
	}
	for _, dir := range toolDirs {
		candidates = append(candidates, filepath.Join(dir, t.name))
	}
	minimum := goversion.Must(goversion.NewVersion(t.minimum))
	for _, p := range candidates {
		if info, err := os.Stat(p); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		v, err := t.askVersion(ctx, p)
		if err != nil {
			seen = append(seen, fmt.Sprintf("%s: %v", p, err))
			continue
		}
		if v.LessThan(minimum) {
			seen = append(seen, fmt.Sprintf("%s is version %s", p, v))
			continue
		}
		t.path, t.version = p, v.String()
		return t, nil
	}
	msg := fmt.Sprintf("no %s of version %s or newer (%s): run '%s'", t.name, t.minimum, t.why, t.target)
	if len(seen) > 0 {
		msg += "; looked at " + strings.Join(seen, ", ")
	}
	return t, errors.New(msg)
}

func (t tool) askVersion(ctx context.Context, path string) (*goversion.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	arg := "version"
	if t.name == "ollama" {
		arg = "--version"
	}
	out, err := exec.CommandContext(ctx, path, arg).CombinedOutput()
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("'%s %s' names no version (%w)", t.name, arg, errors.Join(err, errors.New(firstLine(out))))
	}
	return goversion.NewVersion(string(m[1]))
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// toolsEnv names a directory with the builds of Nomad, Consul and nomad-autoscaler for `remuda dev`.
const toolsEnv = "REMUDA_TOOLS"

// toolDirs are where `make tools` leaves its builds, seen from the binary
// (bin/remuda in a checkout) and from the working directory.
func toolDirs(remuda string) []string {
	dirs := []string{}
	if env := os.Getenv(toolsEnv); env != "" {
		dirs = append(dirs, env)
	}
	dirs = append(dirs, filepath.Join(filepath.Dir(remuda), "..", ".tools", "bin"))
	if wd, err := os.Getwd(); err == nil {
		dirs = append(dirs, filepath.Join(wd, ".tools", "bin"))
	}
	return dirs
}
