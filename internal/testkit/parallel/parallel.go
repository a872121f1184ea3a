// Package parallel lets more parallel tests of a package run at a time than there are
// processors, for tests that wait (for elections, processes, time limits) more than they
// work.
package parallel

import "flag"

// Raise sets the number to n unless the flag -parallel says how many. TestMain calls it
// before m.Run.
func Raise(n string) {
	flag.Parse()
	const name = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	if err := flag.Set(name, n); err != nil {
		panic(err)
	}
}
