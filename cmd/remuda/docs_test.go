package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
	"remuda/internal/testkit/documents"
)

// documented is a command in a document.
type documented struct {
	where string // FILE:LINE
	text  string
	// inline: it stands in a sentence, and may leave arguments out.
	inline bool
}

// allDocuments are all that have commands for users, relative to the root of the module.
func allDocuments(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md", "docs/guides/*.md", "jobs/*/README.md", "jobs/*/*/README.md", "jobs/*.hcl"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		all = append(all, found...)
	}
	return all
}

// programs are those whose commands the documents show.
var programs = []string{"remuda", "remuda-device", "remuda-autoscaler", "nomad", "nomad-pack", "consul", "make", "systemctl", "curl", "export", "install", "unzip", "sha256sum", "apt-get", "dnf", "cd", "git", "go"}

var inlineCode = regexp.MustCompile("`((?:remuda|nomad|make|nomad-pack) [a-z][^`]*)`")

// commandsIn returns the commands of a document: lines after a prompt, or all lines of a block that
// begins with a program, lines of a job file's comments that are indented as an example, and inline code.
func commandsIn(t *testing.T, path, name string) []documented {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var all []documented
	if strings.HasSuffix(name, ".hcl") {
		for i, line := range strings.Split(string(raw), "\n") {
			line, found := strings.CutPrefix(line, "#   ")
			if word, _, _ := strings.Cut(line, " "); found && slices.Contains(programs, word) {
				all = append(all, documented{fmt.Sprintf("%s:%d", name, i+1), line, false})
			}
		}
		return all
	}
	blocks, prose := documents.Parse(string(raw))
	for _, b := range blocks {
		for _, c := range b.Commands(programs) {
			all = append(all, documented{fmt.Sprintf("%s:%d", name, c.Line), c.Text, false})
		}
	}
	for _, line := range prose {
		for _, m := range inlineCode.FindAllStringSubmatch(line.Text, -1) {
			all = append(all, documented{fmt.Sprintf("%s:%d", name, line.Number), m[1], true})
		}
	}
	return all
}

// shellWords splits a command line as a shell does, without expansion, into the commands between ; and |.
func shellWords(line string) ([][]string, error) {
	var all [][]string
	var command []string
	var word strings.Builder
	begun, quote := false, rune(0)
	end := func() {
		if begun {
			command = append(command, word.String())
		}
		begun = false
		word.Reset()
	}
	for _, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word.WriteRune(c)
			}
		case c == '\'' || c == '"':
			quote, begun = c, true
		case c == '#' && !begun:
			end()
			return append(all, command), nil
		case c == ' ':
			end()
		case c == ';' || c == '|' || c == '&':
			end()
			if len(command) > 0 {
				all = append(all, command)
			}
			command = nil
		default:
			begun = true
			word.WriteRune(c)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c is not closed", quote)
	}
	end()
	return append(all, command), nil
}

// TestDocumentedCommands: every command in the documents has a verb, flags, arguments, files, job
// variables and targets that exist.
func TestDocumentedCommands(t *testing.T) {
	root := filepath.Join("..", "..")
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	reference, err := os.ReadFile(filepath.Join(root, "docs/reference/cli.md"))
	require.NoError(t, err)
	check := checker{root: root, makefile: string(makefile), reference: string(reference)}
	count := map[string]int{}
	for _, path := range allDocuments(t, root) {
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		for _, d := range commandsIn(t, path, name) {
			commands, err := shellWords(d.text)
			if err != nil && !d.inline {
				t.Errorf("%s: %s: %v", d.where, d.text, err)
			}
			for _, args := range commands {
				if len(args) == 0 {
					continue
				}
				if err := check.command(args, d.inline); err != nil {
					t.Errorf("%s: %s: %v", d.where, d.text, err)
				}
				count[args[0]]++
			}
		}
	}
	t.Logf("commands checked: %v", count)
	for _, program := range []string{"remuda", "nomad", "nomad-pack", "make", "systemctl", "consul", "remuda-autoscaler"} {
		require.NotZero(t, count[program], program)
	}
	for command, want := range map[string]string{
		"remuda nodes list":                            "no command",
		"remuda node list -watsh":                      "-watsh",
		"remuda model revert":                          "expected MODEL",
		"remuda model apply jobs/nothing.model.hcl":    "jobs/nothing.model.hcl",
		"nomad job run -var con=x jobs/node.nomad.hcl": "no variable con",
		"nomad-pack run jobs/packs/remuda --var x=1":   "no variable x",
		"make nothing":                                 "no target",
		"systemctl start remuda-nothing":               "remuda-nothing",
	} {
		require.ErrorContains(t, check.command(strings.Fields(command), false), want, "the check finds it")
	}
}

// checker checks commands against the programs and files of this module.
type checker struct{ root, makefile, reference string }

func (c checker) command(args []string, inline bool) error {
	for _, a := range args {
		file := strings.TrimPrefix(strings.Trim(a, ".,:"), "@")
		if !strings.HasPrefix(file, "jobs/") || strings.ContainsAny(file, "*…") {
			continue
		}
		if _, err := os.Stat(filepath.Join(c.root, file)); err != nil {
			return err
		}
	}
	switch program := args[0]; program {
	case "remuda":
		return c.remuda(args[1:], inline)
	case "remuda-device", "remuda-autoscaler":
		for i := len(args); i > 0; i-- {
			if strings.Contains(c.reference, strings.Join(args[:i], " ")) {
				return nil
			}
		}
		return fmt.Errorf("docs/reference/cli.md has no %s", program)
	case "nomad":
		if len(args) > 2 && args[1] == "job" && args[2] == "run" {
			return c.variables(args[3:], "-var", func(path string) (map[string]bool, error) {
				raw, err := os.ReadFile(path)
				if err != nil {
					return nil, err
				}
				all := map[string]bool{}
				found, diags := modelfile.JobVariables(path, string(raw))
				for _, v := range found {
					all[v.Name] = true
				}
				if diags.HasErrors() {
					return nil, diags
				}
				return all, nil
			})
		}
	case "nomad-pack":
		return c.variables(args[2:], "--var", func(path string) (map[string]bool, error) {
			raw, err := os.ReadFile(filepath.Join(path, "variables.hcl"))
			if err != nil {
				return nil, err
			}
			file, diags := hclwrite.ParseConfig(raw, path, hcl.InitialPos)
			if diags.HasErrors() {
				return nil, diags
			}
			all := map[string]bool{}
			for _, b := range file.Body().Blocks() {
				all[b.Labels()[0]] = true
			}
			return all, nil
		})
	case "make":
		for _, target := range args[1:] {
			if strings.Contains(target, "=") || strings.ToLower(target) != target {
				continue
			}
			if !strings.Contains(c.makefile, "\n"+target+":") {
				return fmt.Errorf("the Makefile has no target %s", target)
			}
		}
	case "systemctl":
		for _, unit := range args[2:] {
			if strings.HasPrefix(unit, "remuda-") {
				if found, _ := filepath.Glob(filepath.Join(c.root, "packaging", "*", strings.TrimSuffix(unit, ".service")+".service")); len(found) == 0 {
					return fmt.Errorf("packaging has no unit %s", unit)
				}
			}
		}
	default:
		if !inline && !slices.Contains(append(programs, "cp", "env", "sed", "tee", "kill", "sleep", "wait", "grep", "tail", "bin/remuda"), program) && !strings.Contains(program, "=") {
			return fmt.Errorf("the program %s is not known to this test", program)
		}
	}
	return nil
}

// variables checks that those of -var are declared by the file or directory that is the last argument.
func (c checker) variables(args []string, flag string, declared func(path string) (map[string]bool, error)) error {
	if len(args) == 0 {
		return nil
	}
	target := args[slices.IndexFunc(append(args, "jobs/"), func(a string) bool { return strings.HasPrefix(a, "jobs/") })%len(args)]
	if !strings.HasPrefix(target, "jobs/") {
		return nil
	}
	all, err := declared(filepath.Join(c.root, target))
	if err != nil {
		return err
	}
	for i, a := range args[:len(args)-1] {
		if a != flag {
			continue
		}
		if name, _, _ := strings.Cut(args[i+1], "="); !all[name] {
			return fmt.Errorf("%s has no variable %s", target, name)
		}
	}
	return nil
}

// remuda checks a verb with its flags and arguments.
func (c checker) remuda(args []string, inline bool) error {
	p := &program{stdin: &bytes.Buffer{}, stdout: io.Discard, stderr: io.Discard}
	verbs := p.verbs()
	n := 0
	for i := 1; i <= min(len(args), 3); i++ {
		if _, ok := verbs[strings.Join(args[:i], " ")]; ok {
			n = i
		}
	}
	if n == 0 {
		if _, group := groups[args[0]]; group && inline && len(args) == 1 || strings.HasPrefix(args[0], "-") || args[0] == "help" {
			return nil
		}
		return fmt.Errorf("no command %q", strings.Join(args, " "))
	}
	name := strings.Join(args[:n], " ")
	v := verbs[name]
	rest := args[n:]
	for i, a := range rest { // redirections of the shell, and what stands for something left out
		if strings.HasPrefix(a, ">") || strings.HasPrefix(a, "<") || strings.ContainsAny(a, "…\\[") || a == "VERB" {
			if inline || a[0] == '>' || a[0] == '<' {
				rest = rest[:i]
				break
			}
		}
	}
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	v.setup(fs)
	left, err := (&command{p: p, name: name, verb: v}).parse(fs, rest)
	if err != nil && err != flag.ErrHelp {
		if inline && strings.Contains(err.Error(), "invalid value") || inline && strings.Contains(err.Error(), "needs an argument") {
			return nil
		}
		return err
	}
	if inline || v.args == nil || err == flag.ErrHelp {
		return nil
	}
	return checkArgs(v.args, left)
}
