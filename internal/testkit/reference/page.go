// Package reference writes the pages of docs/reference, and other generated files, from the
// code. Only tests import it: a test in the package that owns the data builds a section of a
// page and compares it with the file, so that a page that no longer says what the code does
// fails the tests.
//
// `make reference` runs the same tests with -update, which writes the files.
package reference

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

// dir is where the pages are, relative to the root of the module.
const dir = "docs/reference"

// page is the frame of a page. The sections have their own headings.
type page struct {
	title, intro string
	// sections are the names of the sections in their order on the page.
	sections []string
}

// pages are all pages by their file names.
var pages = map[string]page{
	"cli.md": {
		title: "Command line",
		intro: "The commands of the suite with their flags. Each flag may be written with one dash or two; " +
			"`-flag=VALUE` and `-flag VALUE` are the same, except for switches, which take `-flag=false`. " +
			"`remuda -h` lists the commands and `remuda COMMAND -h` prints the help of one.\n\n" +
			"The environment variables are explained in [environment.md](environment.md), the settings in the configuration files in " +
			"[configuration.md](configuration.md).",
		sections: []string{"remuda", "remuda-device", "remuda-autoscaler"},
	},
	"configuration.md": {
		title: "Configuration",
		intro: "Every setting of every file that an operator writes. A setting in a block is written here as `block.setting`. " +
			"*Allowed* is what the program itself says when it rejects a value; where it is empty, every value of the type is accepted. " +
			"Durations are written as `\"90s\"`, `\"15m\"` or `\"1h30m\"`, sizes as `\"512MiB\"` or `\"16GiB\"`.",
		sections: []string{"controller", "gateway", "model", "pipeline", "calendar", "device", "autoscaler sources", "autoscaler apm", "autoscaler target", "autoscaler strategies"},
	},
	"metrics.md": {
		title: "Metrics",
		intro: "The metrics of each program. All of them are in the format of Prometheus. A histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. " +
			"The controller, the gateway, `remuda lockd` and `remuda gms` also show the metrics of the Go runtime (`go_…`) and of the process (`process_…`).",
		sections: []string{"controller api", "controller raft", "controller reconcile", "controller usage", "controller server", "gateway", "engine", "lockd",
			"gms", "device", "device nvml", "device stats", "autoscaler", "sim"},
	},
	"api.md": {
		title:    "HTTP APIs and protocols",
		intro:    "What each program answers over HTTP, and the protocol of `remuda lockd`.",
		sections: []string{"controller", "gateway", "engine", "lockd"},
	},
	"environment.md": {
		title:    "Environment variables and names in Nomad and Consul",
		intro:    "The names by which the programs and the systems around them know each other.",
		sections: []string{"variables", "nomad", "consul"},
	},
	"versions.md": {
		title:    "Tested versions",
		intro:    "The versions of other programs with which the end-to-end tests run, from the files that pin them. The oldest ones that work are in [install.md](../install.md).",
		sections: []string{"versions"},
	},
}

const notice = "<!-- Generated from the code by `make reference`: do not edit. -->"

func begin(section string) string { return "<!-- begin " + section + " -->\n" }
func end(section string) string   { return "<!-- end " + section + " -->\n" }

// Section compares a section of a page with its file, or writes it with -update.
func Section(t testing.TB, file, section, text string) {
	t.Helper()
	p, known := pages[file]
	if !known || !slices.Contains(p.sections, section) {
		t.Fatalf("package reference has no section %q of %s", section, file)
	}
	text = strings.TrimSpace(text) + "\n"
	path := filepath.Join(Root(t), dir, file)
	if *update {
		rewrite(t, path, p, section, text)
		return
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run: make reference", err)
	}
	if was := cut(string(raw), section); was != text {
		t.Errorf("%s/%s, section %q, is not what the code says; run: make reference\n%s", dir, file, section, difference(was, text))
	}
}

// File compares a generated file with its text, or writes it with -update. The path is
// relative to the root of the module.
func File(t testing.TB, path, text string) {
	t.Helper()
	at := filepath.Join(Root(t), path)
	if *update {
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	raw, err := os.ReadFile(at)
	if err != nil {
		t.Fatalf("%v; run: make reference", err)
	}
	if was := string(raw); was != text {
		t.Errorf("%s is not what the code says; run: make reference\n%s", path, difference(was, text))
	}
}

// rewrite puts a section into its page. Tests of several packages write one page at a time.
func rewrite(t testing.TB, path string, p page, section, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(p.with(string(raw), section, text)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// with returns the page with the sections that it had, and the given one anew.
func (p page) with(was, section, text string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n# %s\n\n%s\n", notice, p.title, p.intro)
	for _, s := range p.sections {
		body := cut(was, s)
		if s == section {
			body = text
		}
		fmt.Fprintf(&b, "\n%s%s%s", begin(s), body, end(s))
	}
	return b.String()
}

// cut returns a section of a page, empty where it has none.
func cut(page, section string) string {
	_, rest, ok := strings.Cut(page, begin(section))
	if !ok {
		return ""
	}
	body, _, ok := strings.Cut(rest, end(section))
	if !ok {
		return ""
	}
	return body
}

// difference shows the first line that differs.
func difference(was, now string) string {
	old, fresh := strings.Split(was, "\n"), strings.Split(now, "\n")
	at := func(lines []string, i int) string {
		if i >= len(lines) {
			return "(the end)"
		}
		return lines[i]
	}
	for i := range max(len(old), len(fresh)) {
		if at(old, i) != at(fresh, i) {
			return fmt.Sprintf("line %d\n  is:     %s\n  should: %s", i+1, at(old, i), at(fresh, i))
		}
	}
	return ""
}
