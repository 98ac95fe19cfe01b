drop table bookshelf.notes, bookshelf.loans, bookshelf.visits, bookshelf.jobs;
