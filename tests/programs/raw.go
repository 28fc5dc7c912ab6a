// The same as raw.c in Go, whose programs make their system calls themselves, whether they are linked statically or not.
//
// usage: raw PATH...    each path with all below, links with their texts, files with what is in them
package main

import (
	"fmt"
	"os"
)

func show(path string) {
	if text, err := os.Readlink(path); err == nil {
		fmt.Printf("%s -> %s\n", path, text)
		return
	}
	if names, err := os.ReadDir(path); err == nil {
		fmt.Printf("%s/\n", path)
		for _, name := range names {
			show(path + "/" + name.Name())
		}
		return
	}
	text, err := os.ReadFile(path)
	length := len(text)
	if err != nil {
		length = -1
	}
	fmt.Printf("%s: %d %s\n", path, length, text)
}

func main() {
	for _, path := range os.Args[1:] {
		show(path)
	}
}
