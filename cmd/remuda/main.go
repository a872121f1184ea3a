// Command remuda is the operator's CLI and every daemon of the suite.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/cli"

	"remuda/internal/closest"
	"remuda/internal/version"
)

// Exit codes, which scripts rely on.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the program at once, whatever it is busy with.
	context.AfterFunc(ctx, stop)
	m := &program{ctx: ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(m.run(os.Args[1:]))
}

// program is what a command may use of the outside world.
type program struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

func (p *program) run(args []string) int {
	if os.Getenv(envCompletion) != "" {
		p.complete(args)
		return exitOK
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "-h")
	}
	c := cli.NewCLI("remuda", version.String())
	c.Args = args
	c.HelpWriter = p.stdout
	var help bytes.Buffer // printed after the run, unless the command is unknown
	c.ErrorWriter = &help
	c.HiddenCommands = []string{gmsServeVerbName, simWorkerVerbName}
	c.Commands = map[string]cli.CommandFactory{}
	for name, v := range p.verbs() {
		c.Commands[name] = func() (cli.Command, error) { return &command{p: p, name: name, verb: v}, nil }
	}
	for name, synopsis := range groups {
		c.Commands[name] = func() (cli.Command, error) { return &group{p: p, name: name, synopsis: synopsis}, nil }
	}
	code, err := c.Run()
	if err != nil {
		fmt.Fprintf(p.stderr, "remuda: %v\n", err)
		return exitFailed
	}
	if code == 127 && c.Subcommand() != "" {
		fmt.Fprintf(p.stderr, "remuda: no command %q%s\nRun 'remuda -h' for the list of commands.\n", c.Subcommand(), p.suggest(c.Subcommand()))
	} else {
		_, _ = help.WriteTo(p.stderr)
	}
	_, word := groups[c.Subcommand()]
	early := len(args) > 0 && strings.HasPrefix(args[0], "-") // a flag before the verb
	if code == 127 || code != exitOK && (word || early) {
		return exitUsage
	}
	return code
}

// suggest returns `: did you mean "…"?` with the command closest to name, or nothing if
// none is close.
func (p *program) suggest(name string) string {
	best := closest.Word(name, append(slices.Sorted(maps.Keys(p.verbs())), slices.Sorted(maps.Keys(groups))...))
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// verb describes one subcommand.
type verb struct {
	// synopsis is the line in the list of commands.
	synopsis string
	// usage is what follows the command's name, as in "[flags] FILE".
	usage string
	// args names the arguments, so that shells can complete them; see apiCommand.
	args []string
	// about explains the command in a few lines.
	about string
	// anywhere: flags may also stand behind arguments, as in `scale M 3 -detach`. Not
	// for verbs whose arguments are another program's command line.
	anywhere bool
	// daemon: the program runs until it is stopped. It ignores SIGPIPE, so that it does not end
	// when its log has no reader: Nomad's executor was killed, or the disk is full. The
	// processes that it starts, such as an engine, inherit this.
	daemon bool
	// setup declares flags on fs and returns what runs once they are parsed.
	// The function returns nil for exit code 0, a usageError for 2, else 1.
	setup func(fs *flag.FlagSet) func(ctx context.Context, args []string) error
}

// usageError is a mistake in how a command was called (exit code 2).
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// exitError asks for an exit code without printing anything more.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// command adapts a verb to hashicorp/cli.
type command struct {
	p    *program
	name string
	verb verb
}

var _ cli.Command = (*command)(nil)

// Synopsis is the line in the list of commands.
func (c *command) Synopsis() string { return c.verb.synopsis }

// Help is the command's long help with its flags.
func (c *command) Help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: remuda %s %s\n\n%s\n", c.name, c.verb.usage, wrapParagraphs(strings.TrimSpace(c.verb.about)))
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.verb.setup(fs)
	flags := false
	fs.VisitAll(func(*flag.Flag) { flags = true })
	if flags {
		var defaults strings.Builder
		fs.SetOutput(&defaults)
		fs.PrintDefaults()
		b.WriteString("\nFlags:\n")
		for line := range strings.Lines(defaults.String()) {
			if flag, text, usage := strings.Cut(line, "\t"); usage {
				if strings.TrimSpace(flag) != "" { // a flag of one letter, on one line with its usage
					fmt.Fprintln(&b, flag)
				}
				line = wrap("      ", text) + "\n"
			}
			b.WriteString(line)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// Run parses the flags, runs the verb and maps its error to an exit code.
func (c *command) Run(args []string) int {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	run := c.verb.setup(fs)
	args, err := c.parse(fs, args)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(c.p.stdout, c.Help())
			return exitOK
		}
		return c.fail(usageError{err.Error() + misspelt(fs, err)})
	}
	if c.verb.daemon {
		signal.Ignore(syscall.SIGPIPE)
	}
	if err := run(c.p.ctx, args); err != nil {
		return c.fail(err)
	}
	return exitOK
}

// misspelt returns a hint if an error of flag is about an unknown flag that is nearly a known one.
func misspelt(fs *flag.FlagSet, err error) string {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return ""
	}
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if longer := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name+"-") }); longer >= 0 {
		name = names[longer]
	} else {
		name = closest.Word(name, names)
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean -%s?)", name)
}

// parse reads the flags and returns the other arguments. What follows -- is no flag.
func (c *command) parse(fs *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if c.verb.anywhere && len(rest) > 0 && len(args) > 0 && negative(args[0]) {
			rest, args = append(rest, args[0]), args[1:]
			continue
		}
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		left := fs.Args()
		read := args[:len(args)-len(left)]
		if !c.verb.anywhere || len(left) == 0 || len(read) > 0 && read[len(read)-1] == "--" {
			return append(rest, left...), nil
		}
		rest, args = append(rest, left[0]), left[1:]
	}
}

// negative reports whether an argument is a negative number, or begins like one. No flag's name
// begins with a digit, and the verb's own error is clearer.
func negative(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && arg[1] >= '0' && arg[1] <= '9'
}

func (c *command) fail(err error) int {
	var exit exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	fmt.Fprintf(c.p.stderr, "remuda %s: %v\n", c.name, err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(c.p.stderr, "Run 'remuda %s -h' for usage.\n", c.name)
		return exitUsage
	}
	return exitFailed
}

// noArgs refuses left-over arguments.
func noArgs(args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q: this command takes only flags", args[0])
	}
	return nil
}
